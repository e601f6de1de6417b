"""What is around every page: name, bar, style, and who is let in. ui/app.py serves it."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # `streamlit run` puts only this folder on the path
    sys.path.insert(0, str(HERE.parent))

from ui.connection import sign_in  # noqa: E402 - found only now

st.set_page_config(page_icon=str(HERE / "icon.svg"), layout="wide")
st.logo(str(HERE / "logo.svg"), size="large")
st.html(HERE / "style.css")

# Not in a folder "pages": Streamlit takes such a folder for its own kind of pages until the first session has run.
# The bar holds what people come for every day; the rest is in menus beside it.
page = st.navigation(
    {
        "": [
            st.Page("screens/runs.py", title="Runs", icon=":material/list:", url_path="runs", default=True),
            st.Page("screens/new_run.py", title="New run", icon=":material/add_circle:", url_path="new"),
            st.Page("screens/data.py", title="Data", icon=":material/dataset:", url_path="data"),
            st.Page("screens/compare.py", title="Compare", icon=":material/compare_arrows:", url_path="compare"),
            st.Page("screens/audit.py", title="Audit", icon=":material/query_stats:", url_path="audit"),
            st.Page("screens/rewards.py", title="Rewards", icon=":material/rule:", url_path="rewards"),
            st.Page("screens/run.py", title="Run", url_path="run", visibility="hidden"),
            st.Page("screens/prompts.py", title="Prompts", url_path="prompts", visibility="hidden"),
            st.Page("screens/prompt.py", title="Prompt", url_path="prompt", visibility="hidden"),
        ],
        "Platform": [
            st.Page("screens/workers.py", title="Workers", icon=":material/memory:", url_path="workers"),
            st.Page("screens/settings.py", title="Settings", icon=":material/settings:", url_path="settings"),
        ],
    },
    position="top",
)
st.set_page_config(page_title=f"{page.title} · Pilot-Commit")
if sign_in():
    page.run()
