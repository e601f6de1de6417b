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
    assert fetch_hub(AB).files == done.files and len(shards.asked) == n + 1, "a branch may; its files are here"
    shards.commit = "b" * 40
    shards["a/b:data/train-00000-of-00002.jsonl"] = b"new"
    moved = fetch_hub(AB)
    assert moved.ref.revision == "b" * 40 and moved.files[0].read_bytes() == b"new"
    assert done.files[0].read_bytes() == b"first"


def test_a_fetch_that_breaks_off_leaves_nothing_half(shards: Hub, home: Path) -> None:
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
    assert left(home) == [f"a--b/{'a' * 40}/data/train-00000-of-00002.jsonl"]
    shards.asked.clear()
    assert fetch_hub(AB).files[1].read_bytes() == b"second"
    assert len(shards.downloads) == 1, "it goes on from the files that are whole"


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
    with pytest.raises(HubAway, match="takes over 0 s to fetch"):
        fetch_hub(AB, Bounds(seconds=0))
    with pytest.raises(FileFault, match="has not been fetched"):
        fetched(PINNED)
    assert not any("test" in path for path in left(home)), "nothing of it stays"


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
