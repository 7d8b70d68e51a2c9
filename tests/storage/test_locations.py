"""Remote folders: committed by a manifest, and read only as it says; URIs never become local folders."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs
from typer.testing import CliRunner

import broadloom as bl
from broadloom import InputError, StorageError
from broadloom.cli.app import app
from broadloom.maintenance import read_events
from broadloom.pipeline import RunConfig
from broadloom.pipeline.stream import read_kafka_config
from broadloom.storage import RemotePath, as_path, committed, copy_remote, is_committed, locations, new_folder
from broadloom.storage.folders import scratch_folder, share_folder
from broadloom.storage.tables import read_table, write_table

PLAN = bl.link(bl.workload.interest(nodes=12, topics=6, sizes=(2, 3), seed=0), algorithm="gm")


def test_a_uri_never_becomes_a_local_folder(tmp_path, monkeypatch):
    """`Path` makes one slash of two; still nothing named `s3a:` appears."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        locations, "_store", lambda *_: pytest.fail("no store is opened for a scheme of files")
    )
    for name in ("s3a://bucket/out", Path("s3a://bucket/out"), "hdfs://head:8020/out"):
        assert isinstance(as_path(name), RemotePath)
    assert as_path("file:///tmp/x") == as_path(Path("file:/tmp/x")) == Path("/tmp/x")
    assert as_path("a/b:c") == Path("a/b:c")
    assert not list(tmp_path.iterdir())


def test_a_scheme_that_nobody_knows_is_refused():
    with pytest.raises((InputError, bl.MissingExtraError), match=r"nowhere://x/"):
        as_path("nowhere://x/y").exists()


def test_a_missing_client_of_hadoop_is_an_error_in_one_line(monkeypatch):
    """PyArrow lists all paths where it has looked for the libraries."""

    class NoLibraries:
        @staticmethod
        def from_uri(_):
            raise OSError("Unable to load libjvm\n" + "dlopen(/usr/lib/jvm/libjvm.so) failed\n" * 100)

    monkeypatch.setattr(fs, "FileSystem", NoLibraries)
    locations._store.cache_clear()
    with pytest.raises(bl.MissingExtraError, match=r"^hdfs://head:8020/ needs .*\(Unable to load libjvm\)$"):
        as_path("hdfs://head:8020/out").exists()


def test_a_plan_is_saved_and_loaded_at_a_uri(store):
    PLAN.save(f"{store}/plan")
    assert bl.Plan.load(f"{store}/plan") == PLAN
    assert bl.Plan.load(Path(f"{store}/plan")) == PLAN
    with pytest.raises(InputError, match="exists already"):
        PLAN.save(f"{store}/plan")
    PLAN.save(f"{store}/plan", overwrite=True)
    names = [entry.name for entry in as_path(f"{store}/plan").iterdir()]
    assert len(names) == 2, "data of the version before is removed"
    assert "_SUCCESS" in names


def test_a_folder_without_a_manifest_is_not_read(store):
    """A process that dies before the commit leaves the version before in place, and its data is unseen."""
    folder = as_path(f"{store}/tables")

    def interrupted():
        with new_folder(folder) as draft:
            write_table(draft, "nodes", pa.table({"node": ["a"]}))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_committed(folder)
    with pytest.raises(InputError, match="has no _SUCCESS that lists its files"):
        read_table(folder, "nodes")
    (folder / "data-killed" / "nodes.parquet").parent.mkdir()
    (folder / "data-killed" / "nodes.parquet").write_bytes(b"half of it")
    with new_folder(folder) as draft:
        write_table(draft, "nodes", pa.table({"node": ["b"]}))
    assert read_table(folder, "nodes")["node"].to_pylist() == ["b"]
    assert sum(entry.name.startswith("data-") for entry in folder.iterdir()) == 1


def test_files_that_the_manifest_does_not_list_are_not_read(store):
    """A task that a scheduler believed dead can write its file late, after the commit."""
    folder = as_path(f"{store}/tables")
    with new_folder(folder) as draft:
        (draft / "nodes.parquet").mkdir()
        write_table(draft / "nodes.parquet", "part-0", pa.table({"node": ["a"]}))
    late = as_path(str(committed(folder))) / "nodes.parquet"
    locations_of_late = RemotePath(str(late), is_draft=True)
    write_table(locations_of_late, "part-1", pa.table({"node": ["late"]}))
    assert read_table(folder, "nodes")["node"].to_pylist() == ["a"]


def test_a_manifest_that_is_cut_commits_nothing(store):
    folder = as_path(f"{store}/tables")
    with new_folder(folder) as draft:
        write_table(draft, "nodes", pa.table({"node": ["a"]}))
    whole = (folder / "_SUCCESS").read_text()
    (folder / "_SUCCESS").write_text(whole[: len(whole) // 2])
    assert not is_committed(folder)
    (folder / "_SUCCESS").write_text(json.dumps(json.loads(whole) | {"format": 9}))
    with pytest.raises(InputError, match="has format 9; this version of Broadloom reads format 1"):
        committed(folder)


def test_a_folder_with_files_of_others_is_never_replaced(store):
    folder = as_path(f"{store}/theirs")
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with (
        pytest.raises(InputError, match=r"holds 'notes\.txt', which is not Broadloom's"),
        new_folder(folder, True),
    ):
        pass
    assert (folder / "notes.txt").read_text() == "mine"


def test_copies_of_remote_folders_are_whole(store, tmp_path):
    PLAN.save(f"{store}/plan")
    copy_remote(committed(f"{store}/plan"), tmp_path / "copy")
    assert bl.Plan.load(tmp_path / "copy") == PLAN


def test_a_store_that_does_not_answer_is_a_storage_error(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    locations._store.cache_clear()
    try:
        with pytest.raises(StorageError, match=r"s3a://bucket/x cannot be read: "):
            as_path("s3a://bucket/x").exists()
        for call in (read_events, RunConfig.load, read_kafka_config):
            with pytest.raises(StorageError) as caught:
                call(as_path("s3a://bucket/x.toml"))
            assert str(caught.value).count("s3a://bucket/x") == 1, "the path is named once"
    finally:
        locations._store.cache_clear()


def test_a_scratch_folder_of_a_process_that_died_is_removed(tmp_path):
    (tmp_path / ".link.killed.new").mkdir()
    with scratch_folder(tmp_path, "link") as scratch:
        assert [entry.name for entry in tmp_path.iterdir()] == [scratch.name]
    assert not list(tmp_path.iterdir())


def test_a_shared_folder_is_open_to_all_users_until_it_is_complete(tmp_path):
    """Entries inherit the rights, whatever mask the process that makes them has."""
    with new_folder(tmp_path / "out") as draft:
        share_folder(draft)
        mask = os.umask(0o077)
        try:
            (draft / "nodes.parquet").mkdir()
            (draft / "nodes.parquet" / "part-0").touch()
        finally:
            os.umask(mask)
        open_to_all = (draft / "nodes.parquet").stat().st_mode & 0o777
        inherits = hasattr(os, "getxattr") and os.listxattr(draft)
        assert open_to_all == (0o777 if inherits else 0o700)
    mask = os.umask(0)
    os.umask(mask)
    for path in (tmp_path / "out", tmp_path / "out" / "nodes.parquet"):
        assert path.stat().st_mode & 0o777 == 0o777 & ~mask
    assert (tmp_path / "out" / "nodes.parquet" / "part-0").stat().st_mode & 0o777 == 0o666 & ~mask


def test_commands_print_a_uri_as_it_was_given(store, tmp_path):
    """Typer's `Path` makes one slash of the two of a URI."""
    runner = CliRunner()
    PLAN.save(tmp_path / "plan")
    done = runner.invoke(app, ["link", str(tmp_path / "plan"), "-a", "gm", "-o", f"{store}/linked"])
    assert done.exit_code == 0, done.output
    assert f"-> {store}/linked\n" in done.output
    done = runner.invoke(app, ["report", f"{store}/linked", "-o", f"{store}/page.html", "--json"])
    assert json.loads(done.output)["output"] == f"{store}/page.html"
    done = runner.invoke(app, ["link", f"{store}/linked", "-o", f"{store}/linked"])
    assert f"the output {store}/linked is also the input" in str(done.exception)


def test_events_are_read_from_a_store(store, tmp_path):
    """A file, and the folder of a run that a manifest commits."""
    runner = CliRunner()
    PLAN.save(tmp_path / "plan")
    events = pa.table({"seq": [1], "kind": ["leave"], "node": [str(PLAN.interest.nodes[0])]})
    with new_folder(as_path(f"{store}/tables")) as draft:
        write_table(draft, "events", events)
    as_path(f"{store}/events.jsonl").write_text(f"{json.dumps(events.to_pylist()[0])}\n")
    for name in ("tables", "events.jsonl"):
        words = ["maintain", "--plan", str(tmp_path / "plan"), "--events", f"{store}/{name}", "--json"]
        done = runner.invoke(app, [*words, "-o", str(tmp_path / f"of-{name}")])
        assert done.exit_code == 0, done.exception
        assert json.loads(done.output)["leave"]["rounds"] == 1


def test_an_output_that_must_be_local_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["reproduce", "2", "fig1", "--show-only", "-o", "s3a://bucket/out"])
    assert str(done.exception) == "the output is s3a://bucket/out; give a local folder"
    assert not list(tmp_path.iterdir())
