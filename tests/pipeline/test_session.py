"""Where Spark starts: one line when it cannot, and a session that is given stays as it is."""

import zipfile

import pytest

from broadloom import InputError
from broadloom.pipeline import session as module
from broadloom.pipeline.session import Engine, package_zip, parse_conf, session


@pytest.mark.spark
def test_a_given_session_is_used_and_not_stopped(spark):
    with session(Engine(master="spark://nowhere:1"), spark) as used:
        assert used is spark
    assert spark.range(3).count() == 3


def test_master_and_remote_exclude_each_other():
    with pytest.raises(InputError, match="give one"):
        Engine(master="yarn", remote="sc://host")
    with pytest.raises(InputError, match="sc://host:port"):
        Engine(remote="host")


def test_a_remote_where_nobody_listens_is_refused_at_once():
    with pytest.raises(InputError, match=r"no Spark Connect at sc://127\.0\.0\.1:1"):
        module._check_reachable("sc://127.0.0.1:1", "Spark Connect", 15002)
    with pytest.raises(InputError, match=r"no Spark master at spark://127\.0\.0\.1:1: "):
        module._launch(Engine(master="spark://127.0.0.1:1"), None)


def test_settings_are_words_with_an_equals_sign():
    assert parse_conf(["spark.a.b=c=d"]) == {"spark.a.b": "c=d"}
    with pytest.raises(InputError, match=r"spark\.name=value"):
        parse_conf(["memory=4g"])


def test_missing_spark_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'broadloom\[spark\]'"):
        module.need_spark()


def test_the_package_travels_as_a_zip(tmp_path):
    """What executors get can be imported by itself."""
    place = package_zip(tmp_path)
    names = zipfile.ZipFile(place).namelist()
    assert "broadloom/__init__.py" in names
    assert "broadloom/pipeline/read.py" in names


def test_local_settings_fit_the_machine():
    settings = module._settings(Engine())
    assert int(settings["spark.driver.memory"].removesuffix("m")) >= 1024
    assert "spark.driver.memory" not in module._settings(Engine(master="yarn"))
