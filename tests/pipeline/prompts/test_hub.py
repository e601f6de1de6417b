"""Data sets of the hub: fetched once, bounded, whole or not at all."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pipeline.prompts import Bounds, FileFault, HubAway, HubRef, fetch_hub, hub_ref
from pipeline.prompts.hub import fetched
from pipeline.sandbox import ROOT
from tests.hub import Hub

AB = HubRef("a/b")
PINNED = AB._replace(revision="a" * 40)


@pytest.fixture
def shards(hub: Hub, home: Path) -> Hub:
    hub["a/b:data/train-00000-of-00002.jsonl"] = b"first"
    hub["a/b:data/train-00001-of-00002.jsonl"] = b"second"
    hub["a/b:data/test.jsonl"] = b"not asked for"
    return hub


def left(home: Path) -> list[str]:
    return sorted(str(p.relative_to(home / "hub")) for p in (home / "hub").rglob("*") if p.is_file())


def test_what_is_here_is_not_asked_for_again(shards: Hub, home: Path) -> None:
    done = fetch_hub(AB)
    assert done.ref == PINNED and done.new and [f.read_bytes() for f in done.files] == [b"first", b"second"]
    n = len(shards.asked)
    again = fetch_hub(done.ref)
    assert again == done._replace(new=False) and len(shards.asked) == n, "a commit does not change"
    assert fetch_hub(AB) == again and len(shards.asked) == n + 1, "a branch may; its files are here, and not new"
    shards.commit = "b" * 40
    shards["a/b:data/train-00000-of-00002.jsonl"] = b"new"
    moved = fetch_hub(AB)
    assert moved.ref.revision == "b" * 40 and moved.files[0].read_bytes() == b"new"
    assert done.files[0].read_bytes() == b"first"


def test_a_fetch_that_breaks_off_leaves_nothing(shards: Hub, home: Path) -> None:
    sent: list[Hub] = []
    waiting, go_on = threading.Event(), threading.Event()

    def before() -> None:
        sent.append(shards)
        if len(sent) == 2:
            waiting.set()
            go_on.wait(20)

    shards.before = before
    with pytest.raises(HubAway, match="told to stop"):
        fetch_hub(AB, Bounds(ending=waiting.is_set))
    go_on.set()
    with pytest.raises(FileFault, match="has not been fetched here"):
        fetched(PINNED)
    assert list((home / "hub").iterdir()) == []
    assert fetch_hub(AB).files[1].read_bytes() == b"second"


def test_who_fetches_ends_with_who_asked(shards: Hub, home: Path) -> None:
    """Else it would go on beyond its bounds."""
    waiting, go_on = threading.Event(), threading.Event()
    shards.before = lambda: (waiting.set(), go_on.wait(20))
    with subprocess.Popen([ROOT / "pilot", "data", "fetch", "hub:a/b"]) as asked:
        assert waiting.wait(60)
        ours = psutil.Process(asked.pid).children(recursive=True)
        (child,) = [p for p in ours if "pipeline.prompts.download" in " ".join(p.cmdline())]
        for process in (asked, *ours):
            if process.pid != child.pid:
                process.kill()
        child.wait(20)
    go_on.set()


def test_who_fetches_needs_no_torch() -> None:
    """The API's image has none."""
    seen = "import sys, pipeline.prompts.download; print({'torch', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", seen], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr


def test_offline(shards: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = fetch_hub(AB)
    shards.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_hub(done.ref).files == done.files
    with pytest.raises(HubAway, match="HF_HUB_OFFLINE is set"):
        fetch_hub(AB)
    assert shards.asked == []


def test_a_disk_that_takes_nothing_is_no_fault_of_the_hub(shards: Hub, home: Path) -> None:
    (home / "hub" / "a--b").mkdir(parents=True)
    (home / "hub" / "a--b" / ("a" * 40)).write_text("in the way")
    with pytest.raises(OSError, match="exists|Not a directory"):
        fetch_hub(AB)


def test_several_at_once(shards: Hub, home: Path) -> None:
    both = threading.Barrier(2, timeout=20)
    shards.before = lambda: print(both.wait())
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(fetch_hub, [AB, AB])
    assert one.files == other.files == fetched(PINNED) and len(shards.downloads) == 4
    assert [f.read_bytes() for f in one.files] == [b"first", b"second"] and len(left(home)) == 3


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (Bounds(n_bytes=10), "has 11 bytes in the split 'train'; at most 10 are taken here"),
        (Bounds(n_files=1), "has 2 files in the split 'train'; at most 1 are taken here"),
    ],
)
def test_too_much_is_not_begun(bounds: Bounds, message: str, shards: Hub, home: Path) -> None:
    with pytest.raises(FileFault, match=message):
        fetch_hub(AB, bounds)
    assert shards.downloads == [] and left(home) == []


def test_too_much_that_the_hub_does_not_tell_is_stopped(shards: Hub, home: Path) -> None:
    shards.sizes = dict.fromkeys(shards, None)
    with pytest.raises(FileFault, match="has more bytes in the split .train.; at most 10 are taken here"):
        fetch_hub(AB, Bounds(n_bytes=10))
    shards["a/b:data/test.jsonl"] = b" " * (2 << 20)
    with pytest.raises(FileFault, match="has more bytes in a file of the split .test.; at most 10 are taken here"):
        fetch_hub(AB._replace(split="test"), Bounds(n_bytes=10))
    with pytest.raises(HubAway, match="takes over 0 s to fetch. Elsewhere$"):
        fetch_hub(AB, Bounds(seconds=0, beyond="Elsewhere"))
    with pytest.raises(FileFault, match="has not been fetched"):
        fetched(PINNED)
    assert list((home / "hub").iterdir()) == [], "nothing of it stays"


def test_what_is_here_keeps_to_the_bounds_as_well(shards: Hub, home: Path) -> None:
    done = fetch_hub(AB)
    shards.sizes = dict.fromkeys(shards, None)
    for ref in (done.ref, AB):
        with pytest.raises(FileFault, match="has 11 bytes in the split 'train'; at most 10 are taken here"):
            fetch_hub(ref, Bounds(n_bytes=10))
        with pytest.raises(FileFault, match="has 2 files in the split 'train'; at most 1 are taken here"):
            fetch_hub(ref, Bounds(n_files=1))


def test_who_fetches_knows_no_credentials_of_the_platform(
    shards: Hub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "REDIS_URL", "PILOT_TOKEN", "PILOT_TOKEN_FILE", "HF_TOKEN"):
        monkeypatch.setenv(name, "x")
    seen: list[dict[str, str]] = []

    def look() -> None:
        fetching = [p for p in psutil.Process().children() if "pipeline.prompts.download" in " ".join(p.cmdline())]
        seen.extend(process.environ() for process in fetching)

    shards.before = look
    fetch_hub(AB)
    ours = {"DATABASE_URL", "REDIS_URL"}
    for environ in seen:
        assert {k for k in environ if k in ours or k.startswith("PILOT_")} == {"PILOT_HOME"}
    assert seen and seen[0]["HF_TOKEN"] == "x", "the hub's token is its business"


@pytest.mark.parametrize("userinfo", ["user:secret@", "user:s@secret@", "user:s/secret@"])
def test_a_password_of_the_endpoint_is_not_told(
    userinfo: str, shards: Hub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = shards.url.replace("//", f"//{userinfo}")

    def fault() -> str:
        with pytest.raises(HubAway) as caught:
            fetch_hub(AB)
        assert "secret" not in str(caught.value) and "user" not in str(caught.value)
        return str(caught.value)

    for endpoint in ("http://{}127.0.0.1:1", "{}127.0.0.1:1", "http://{}[::1"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint.format(userinfo))
        assert "could not be fetched: " in fault()
    monkeypatch.setenv("HF_ENDPOINT", given)
    if "/" in userinfo:
        assert "HF_ENDPOINT, or where it leads, is no address" in fault()
        return
    shards.refusals["a/b"] = (503, "")
    assert f"the hub at {shards.url} answered 503" in fault()
    shards.refusals.clear()
    shards.commit = "x"
    assert f"what {shards.url} answers is not an answer of a hub" in fault()


def test_the_exact_name_of_a_split_wins(shards: Hub, home: Path) -> None:
    shards["a/b:train.jsonl"] = b"exact"
    (file,) = fetch_hub(AB).files
    assert file.read_bytes() == b"exact" and len(fetch_hub(AB._replace(split="data/train")).files) == 2


@pytest.mark.parametrize("n", range(4))
def test_a_split_in_several_formats_is_read_once(n: int, hub: Hub, home: Path) -> None:
    formats = ["parquet", "jsonl", "json", "csv"]
    for suffix in formats[n:]:
        hub[f"a/b:train.{suffix}"] = b"x"
    assert [file.name for file in fetch_hub(AB).files] == [f"train.{formats[n]}"]


def test_names_of_splits_that_resemble_each_other(hub: Hub, home: Path) -> None:
    hub["a/b:main/train.jsonl"] = b"one"
    hub["a/b:main--train.jsonl"] = b"other"
    for split in ("main/train", "main--train"):
        fetch_hub(AB._replace(split=split))
    assert [f.read_bytes() for s in ("main/train", "main--train") for f in fetched(PINNED._replace(split=s))] == [
        b"one", b"other",
    ]  # fmt: skip


def test_a_folder_of_the_data_set_may_have_any_name(hub: Hub, home: Path) -> None:
    hub["a/b:listing/train.jsonl"] = b"x"
    assert len(fetch_hub(AB).files) == 1


def test_what_the_hub_does_not_give(shards: Hub, home: Path) -> None:
    for refusal, kind, message in (
        ((401, "RepoNotFound"), FileFault, "is not on the hub, or is private: then whoever fetches it needs a token"),
        ((403, "GatedRepo"), FileFault, "is gated: ask its owners for access"),
        ((503, ""), HubAway, "answered 503"),
    ):
        shards.refusals["a/b"] = refusal
        with pytest.raises(FileFault, match=message) as caught:
            fetch_hub(AB)
        assert type(caught.value) is kind
    shards.refusals = {"a/b:data/train-00001-of-00002.jsonl": (403, "GatedRepo")}
    with pytest.raises(FileFault, match="is gated"):  # the hub lists the files of a gated data set to everybody
        fetch_hub(AB)
    shards.refusals = {"a/b:data/train-00001-of-00002.jsonl": (451, "")}
    with pytest.raises(HubAway, match="answered 451"):
        fetch_hub(AB)
    shards.refusals.clear()
    with pytest.raises(FileFault, match="has no revision 'v2'"):
        fetch_hub(HubRef("a/b", "v2"))
    shards.commit = "../../etc"
    with pytest.raises(HubAway, match="is not an answer of a hub"):
        fetch_hub(AB)


def test_a_file_that_passes_for_our_list_is_not_fetched(hub: Hub, home: Path) -> None:
    """Else its owner would choose which files of this machine are read."""
    hub["a/b:.train.json"] = b'["/etc/hostname.jsonl"]'
    hub["a/b:.x/train.jsonl"] = b"{}"
    for split in (".train", "train"):
        with pytest.raises(FileFault, match=f"has no split '{split}'; there are: none; files that can be read end in"):
            fetch_hub(HubRef("a/b", split=split))
    assert hub.downloads == []


@pytest.mark.parametrize(
    "source", ["hub:a/b@..", "hub:a--b/c", "hub:a/b:x\n", "hub:b", "hub:../b", "hub:a/b:/x", "hub:"]
)
def test_no_name_of_the_hub(source: str) -> None:
    with pytest.raises(FileFault, match="is not hub:OWNER/NAME"):
        hub_ref(source)
