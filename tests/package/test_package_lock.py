"""Which packages go into the image, and by which hashes they are known."""

import sys
import tomllib
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import pytest
from package_cases import ABSENT, files_of
from serve_cases import linear

from quantkit import PackageSettings, package_model
from quantkit.deploy.package import lock
from quantkit.deploy.package.lock import (
    SERVER,
    Package,
    download,
    installed,
    lock_text,
    machine,
    read_lock,
)
from quantkit.deploy.package.server_files import LICENCE, server_files
from quantkit.errors import UsageError
from quantkit.model.provenance import runtime_package, software

HASH = "0123456789abcdef" * 4
ROOT = Path(__file__).parents[2]


def test_a_server_gets_what_the_extra_has_and_what_it_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    names = {need.partition(">")[0] for need in extras["serve"]}
    assert set(SERVER) == names | {"msgspec", "numpy", "onnxruntime"}


def test_packages_come_with_what_they_need() -> None:
    found = {one.name: one for one in installed(["uvicorn"])}
    assert {"click", "h11", "uvicorn"} <= set(found)
    assert "click" in found["uvicorn"].needs
    assert found["click"].licence
    with pytest.raises(UsageError, match="'no-such-package' is not"):
        installed(["no-such-package"])


def test_no_module_of_the_server_reaches_what_is_not_in_the_image() -> None:
    found = server_files()
    assert {
        "quantkit/deploy/serve/app.py",
        "quantkit/__init__.py",
        "calibrators/__init__.py",
    } <= set(found)
    assert not [
        name
        for name in found
        if name.startswith(("quantkit/cli", "quantkit/graph", "quantkit/api"))
    ]
    tops = tuple(
        f"{word} {name}{end}"
        for word in ("import", "from")
        for name in ABSENT
        for end in (".", " ", "\n")
    )
    assert found[LICENCE].read_bytes() == (ROOT / LICENCE).read_bytes()
    for file in found.values():
        lines = file.read_text().splitlines(keepends=True)
        assert not [line for line in lines if line.startswith(tops)], file


def test_a_build_of_onnxruntime_under_another_name_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name in {"onnxruntime", "onnxruntime-gpu"}:
            name = {"onnxruntime": "absent-package", "onnxruntime-gpu": "onnxruntime"}[name]
        return real(name)

    monkeypatch.setattr("quantkit.model.provenance.version", version)
    assert runtime_package() == ("onnxruntime-gpu", real("onnxruntime"))
    assert software()["onnxruntime"] == real("onnxruntime")


def write(file: Path, packages: tuple[Package, ...]) -> Path:
    file.write_text(lock_text(packages, "3.11"))
    return file


def test_a_lock_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    needed = installed(["uvicorn"])
    given = tuple(
        Package(
            name=one.name, version=one.version, hashes=(HASH,), licence=one.licence, needs=one.needs
        )
        for one in needed
    )
    assert read_lock(write(tmp_path / "lock", given), needed) == given


def test_a_lock_file_as_uv_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.write_text(
        "# by uv\n\nPretty.Name==1.0rc1+local ; python_version < '3.13' \\\n"
        f"    --hash=sha256:{HASH} \\\n    --hash=sha256:{HASH[::-1]}\n    # via other\nother[x]==2 --hash=sha256:{HASH}\n"
    )
    found = {one.name: one for one in read_lock(file, [])}
    assert found["pretty-name"].version == "1.0rc1+local"
    assert found["pretty-name"].marker == 'python_version < "3.13"'
    assert len(found["pretty-name"].hashes) == 2
    again = write(tmp_path / "again", tuple(found.values()))
    assert {one.name: one for one in read_lock(again, [])} == found


@pytest.mark.parametrize(
    "line",
    [
        "name==1",
        "name>=1 --hash=sha256:" + HASH,
        "name==1 --hash=md5:abc",
        "-e .",
        "--index-url https://evil.example",
        "name @ https://evil.example/x.whl --hash=sha256:" + HASH,
        "name==1; $(id) --hash=sha256:" + HASH,
    ],
)
def test_a_line_without_version_and_hash_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "lock").write_text(f"{line}\n")
    with pytest.raises(UsageError, match="is not a package with version and hash"):
        read_lock(tmp_path / "lock", [])


def test_a_lock_file_must_have_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f"click==8 --hash=sha256:{HASH}\n")
    with pytest.raises(UsageError, match="lacks what a server needs: h11, "):
        read_lock(tmp_path / "lock", installed(["uvicorn"]))
    with pytest.raises(FileNotFoundError):
        read_lock(tmp_path / "absent", [])
    (tmp_path / "lock").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="Cannot read the lock file"):
        read_lock(tmp_path / "lock", [])


def test_a_package_with_a_given_lock_asks_no_index(tmp_path: Path) -> None:
    needed = installed((*SERVER, lock.IMAGES))
    other = [one.version if one.name != "click" else "0.1" for one in needed]
    file = write(
        tmp_path / "lock",
        tuple(
            Package(name=one.name, version=version, hashes=(HASH,))
            for one, version in zip(needed, other, strict=True)
        ),
    )
    made = package_model(linear(tmp_path), tmp_path / "out", settings=PackageSettings(lock=file))
    assert made.hashed
    assert made.packages["click"] == "0.1"
    assert any("click 0.1 (" in note for note in made.notes)
    assert "--require-hashes" in (tmp_path / "out/Dockerfile").read_text()
    assert "--hash=sha256:" in (tmp_path / "out/requirements.lock").read_text()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give pip a folder of wheels, and no network."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(folder: Path, name: str = "some_package-1.0-py3-none-any.whl") -> Path:
    import zipfile

    with zipfile.ZipFile(folder / name, "w") as file:
        file.writestr(
            "some_package-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: some-package\nVersion: 1.0\n",
        )
        file.writestr(
            "some_package-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr("some_package-1.0.dist-info/RECORD", "")
    return folder / name


def test_hashes_are_those_of_the_wheels_that_pip_gets(index: Path, tmp_path: Path) -> None:
    made = wheel(index)
    (tmp_path / "wheels").mkdir()
    asked = Package(name="some-package", version="1.0")
    (found,) = download([asked], "amd64", tmp_path / "wheels")
    assert found.hashes == (sha256(made.read_bytes()).hexdigest(),)
    assert [p.name for p in (tmp_path / "wheels").iterdir()] == [made.name]
    with pytest.raises(UsageError, match="has none of the hashes in the lock file"):
        download(
            [Package(name="some-package", version="1.0", hashes=(HASH,))],
            "amd64",
            tmp_path / "wheels",
        )


@pytest.mark.usefixtures("index")
def test_without_an_index_one_line_says_what_else_there_is(tmp_path: Path) -> None:
    model = linear(tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(
        UsageError, match=r"pip cannot get the packages for \w+ \(.*\): give a file .* --no-lock"
    ) as e:
        package_model(model, tmp_path / "out")
    assert "\n" not in str(e.value)
    assert files_of(tmp_path) == before


def test_without_pip_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(UsageError, match=r"No module named pip\): give a file"):
        download([Package(name="x", version="1")], "arm64", tmp_path)


def test_a_machine_that_nobody_has_wheels_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine("arm64") == "arm64"
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(UsageError, match="this machine is riscv64"):
        machine(None)
