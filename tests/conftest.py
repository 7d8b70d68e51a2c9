"""Settings and fixtures of all tests."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("BROADLOOM_KERNELS", "compiled")  # tests/test_kernels.py compares the two ways to run
CI = os.environ.get("BROADLOOM_CI") == "1"


# Drawing or running an example can compile a kernel, so there is no time limit; CI draws the same examples
# each time.
settings.register_profile(
    "broadloom", deadline=None, derandomize=CI, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("broadloom")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the processes that tests start: the PATH of servers, SIGINT, and `make test-optimized`."""
    os.environ["PATH"] += os.pathsep + "/usr/sbin"  # Debian keeps servers off the PATH of a plain user
    starts_workers = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if os.environ.get("BROADLOOM_OPTIMIZE") == "1" and not starts_workers:
        os.environ["PYTHONOPTIMIZE"] = "1"  # children run with -O; the processes of pytest keep their asserts
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # inherited from a background shell
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all Spark tests to one worker, so that a whole run starts one JVM."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that lacks a program or the data; under BROADLOOM_CI=1 a missing program fails it."""
    programs = [program for marker in item.iter_markers("needs") for program in marker.args]
    if missing := [program for program in programs if shutil.which(program) is None]:
        reason = f"not installed: {', '.join(missing)}"
        pytest.fail(reason, pytrace=False) if CI else pytest.skip(reason)
    if item.get_closest_marker("data") and not data_folder().is_dir():
        pytest.skip(f"no shared data at {data_folder()} (BROADLOOM_DATA names another folder)")


def data_folder() -> Path:
    """The folder of the shared latency and interest data, which need not exist."""
    default = Path(__file__).parents[2] / "shared" / "data"
    return Path(os.environ.get("BROADLOOM_DATA", default))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of the shared data, for tests marked `data`."""
    return data_folder()


@pytest.fixture
def run(capfd):
    """Run `broadloom ...` in this process; returns the exit code, standard output and standard error."""
    from broadloom.cli import main  # here, so that other tests do not load it

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(exited.value.code or 0), out, err

    return call


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that is a folder of this machine, for URIs of S3; BROADLOOM_S3 names a real one."""
    from pyarrow import fs

    from broadloom.storage import RemotePath, locations

    if "BROADLOOM_S3" in os.environ:
        return f"s3a://{os.environ['BROADLOOM_S3']}/{tmp_path.name}"
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    inner = fs.SubTreeFileSystem(str(tmp_path / "store"), fs.LocalFileSystem())
    monkeypatch.setattr(locations, "_store", lambda *_: inner)
    monkeypatch.setattr(RemotePath, "mkdir", lambda self, **_: inner.create_dir(self.store_path))
    return "s3a://bucket/out"
