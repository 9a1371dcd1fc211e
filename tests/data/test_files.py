"""Downloads, archives, md5 verdicts and the cache, against a web server of our own on this machine."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from limits import largest_file
from mixmatch.data import cache
from mixmatch.data.cache import cache_folder, cached_array
from mixmatch.data.published import files
from mixmatch.data.published.files import Archive, Published, choose, data_folder, fetch, verify
from mixmatch.errors import MixMatchError
from mixmatch.storage import temporary, try_lock

CONTENT = bytes(range(256)) * 5000


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def left_in(folder: Path) -> list[str]:
    """Every file in the folder, the cache aside."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in paths if path.parts[0] != ".mixmatch-cache")


def tar_gz(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class Server:
    def __init__(self, root: Path, url: str) -> None:
        self.root, self.url = root, url
        self.requests: list[str] = []

    def publish(self, name: str, content: bytes) -> str:
        (self.root / name).write_bytes(content)
        return f"{self.url}/{name}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    root = tmp_path / "www"
    root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            found.requests.append(self.path)
            if self.path.endswith("/cut-short"):  # promises more than it sends, as a lost connection does
                self.send_response(200)
                self.send_header("Content-Length", "1000000")
                self.end_headers()
                self.wfile.write(b"x" * 1000)
                return
            super().do_GET()

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
    found = Server(root, f"http://127.0.0.1:{httpd.server_address[1]}")
    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
    yield found
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MIXMATCH_OFFLINE", raising=False)
    return tmp_path / "data"


def one_line(error: pytest.ExceptionInfo[MixMatchError], *parts: object) -> None:
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message


# Where the data folder is


def test_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("MIXMATCH_DATA", raising=False)
    assert data_folder() == Path("/home/someone/.cache/mixmatch/data")
    monkeypatch.setenv("MIXMATCH_DATA", "~/images")
    assert data_folder() == Path("/home/someone/images")
    assert data_folder("here") == Path("here")


# Downloads


def test_download_once(server: Server, folder: Path) -> None:
    file = Published("sub/a.bin", md5(CONTENT), server.publish("a.bin", CONTENT))
    for _ in range(2):
        [verdict] = fetch([file], folder)
        assert verdict.text == "as published"
    assert (folder / "sub/a.bin").read_bytes() == CONTENT
    assert left_in(folder) == ["sub/a.bin"]
    assert server.requests == ["/a.bin"]


def test_download_with_the_wrong_md5(server: Server, folder: Path) -> None:
    file = Published("a.bin", md5(b"other"), server.publish("a.bin", CONTENT))
    with pytest.raises(MixMatchError) as error:
        fetch([file], folder)
    one_line(error, "a.bin", file.origin, folder / "a.bin", md5(CONTENT), md5(b"other"))
    assert left_in(folder) == []


def test_download_of_a_page_that_is_not_there(server: Server, folder: Path) -> None:
    with pytest.raises(MixMatchError) as error:
        fetch([Published("a.bin", None, f"{server.url}/nothing")], folder)
    one_line(error, "404", f"{server.url}/nothing", folder / "a.bin")
    assert left_in(folder) == []


def test_download_cut_short(server: Server, folder: Path) -> None:
    with pytest.raises(MixMatchError) as error:
        fetch([Published("a.bin", md5(CONTENT), f"{server.url}/cut-short")], folder)
    one_line(error, "could not be downloaded", folder / "a.bin")
    assert left_in(folder) == []


def test_no_connection(folder: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/a.bin"
    with pytest.raises(MixMatchError) as error:
        fetch([Published("a.bin", None, url)], folder)
    one_line(error, "no connection to 127.0.0.1", url, folder / "a.bin")
    assert left_in(folder) == []


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_offline_never_asks_the_network(
    how: str, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "environment":
        monkeypatch.setenv("MIXMATCH_OFFLINE", "1")
    file = Published("a.bin", None, server.publish("a.bin", CONTENT))
    with pytest.raises(MixMatchError) as error:
        fetch([file], folder, download=how != "argument")
    one_line(error, "downloads are off", file.origin, folder / "a.bin")
    assert server.requests == []
    assert not folder.exists()


def test_download_to_a_full_disk(server: Server, folder: Path) -> None:
    file = Published("a.bin", md5(CONTENT), server.publish("a.bin", CONTENT))
    with largest_file(100_000), pytest.raises(MixMatchError) as error:
        fetch([file], folder)
    one_line(error, "a.bin", "could not be downloaded")
    assert left_in(folder) == []


def test_download_into_a_folder_that_is_a_file(server: Server, folder: Path) -> None:
    folder.write_text("not a folder")
    with pytest.raises(MixMatchError) as error:
        fetch([Published("a.bin", None, server.publish("a.bin", CONTENT))], folder)
    one_line(error, folder / "a.bin")


def test_progress_bar_only_on_a_terminal(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server.publish("a.bin", CONTENT)
    fetch([Published("quiet.bin", None, url)], folder)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fetch([Published("seen.bin", None, url)], folder)
    out, err = capsys.readouterr()
    assert out == ""
    assert "seen.bin" in err
    assert "1.3/1.3 MB" in err


# Archives


def test_archive_gives_the_wanted_files_and_no_others(server: Server, folder: Path) -> None:
    content = tar_gz({"../evil": b"!", "/evil": b"!", "set/a.bin": CONTENT, "./set/b.txt": b"names", "set/c.bin": b"c"})
    archive = Archive(server.publish("set.tar.gz", content), md5(content), "set.tar.gz")
    wanted = [Published("set/a.bin", md5(CONTENT), archive), Published("set/b.txt", None, archive, optional=True)]
    verdicts = fetch(wanted, folder)
    assert [verdict.text for verdict in verdicts] == ["as published", "no published md5"]
    assert left_in(folder) == ["set/a.bin", "set/b.txt"]
    assert (folder / "set/a.bin").read_bytes() == CONTENT
    assert not (folder.parent / "evil").exists()
    assert server.requests == ["/set.tar.gz"]


def test_archive_with_links_in_the_place_of_files(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    with tarfile.open(folder / "set.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("set/a.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "../../secret"
        tar.addfile(link)
    archive = Archive("http://127.0.0.1:9/set.tar.gz", md5((folder / "set.tar.gz").read_bytes()), "set.tar.gz")
    with pytest.raises(MixMatchError, match=r"does not hold set/a\.bin"):
        fetch([Published("set/a.bin", None, archive)], folder)
    assert left_in(folder) == ["set.tar.gz"]


def test_archive_that_lies_in_the_folder(folder: Path) -> None:
    folder.mkdir()
    content = tar_gz({"set/a.bin": CONTENT})
    (folder / "set.tar.gz").write_bytes(content)
    warnings: list[str] = []
    published = Archive("http://127.0.0.1:9/set.tar.gz", md5(content), "set.tar.gz")
    fetch([Published("set/a.bin", md5(CONTENT), published)], folder, download=False, warn=warnings.append)
    assert (folder / "set/a.bin").read_bytes() == CONTENT
    assert warnings == []

    (folder / "set/a.bin").unlink()
    other = Archive(published.url, md5(b"other"), "set.tar.gz")
    with pytest.raises(MixMatchError, match="not the published file"):
        fetch([Published("set/a.bin", md5(CONTENT), other)], folder, strict=True, download=False)
    assert left_in(folder) == ["set.tar.gz"]
    fetch([Published("set/a.bin", md5(CONTENT), other)], folder, download=False, warn=warnings.append)
    assert len(warnings) == 1
    assert "set.tar.gz is not the published file" in warnings[0]


@pytest.mark.parametrize("damage", ["cut", "flipped", "not an archive", "empty"])
def test_damaged_archive(damage: str, folder: Path) -> None:
    folder.mkdir()
    content = bytearray(tar_gz({"set/a.bin": np.random.default_rng(0).bytes(1_000_000)}))
    if damage == "flipped":
        content[500_000] ^= 255
    damaged = {"cut": content[:500_000], "flipped": content, "not an archive": b"<html>", "empty": b""}[damage]
    (folder / "set.tar.gz").write_bytes(bytes(damaged))
    archive = Archive("http://127.0.0.1:9/set.tar.gz", md5(b""), "set.tar.gz")
    with pytest.raises(MixMatchError) as error:
        # A flipped byte in stored data is found at the end of the stream, which comes with the second file.
        fetch(
            [Published(f"set/{name}.bin", None, archive) for name in "ab"], folder, download=False, warn=lambda _: None
        )
    one_line(error, folder / "set.tar.gz", "delete it or put the published file there")
    assert not list(folder.rglob("*.part"))


def test_unpacking_to_a_full_disk(folder: Path) -> None:
    folder.mkdir()
    content = tar_gz({"set/a.bin": bytes(1_000_000)})
    (folder / "set.tar.gz").write_bytes(content)
    archive = Archive("http://127.0.0.1:9/set.tar.gz", md5(content), "set.tar.gz")
    with largest_file(100_000), pytest.raises(MixMatchError) as error:
        fetch([Published("set/a.bin", None, archive)], folder)
    one_line(error, "cannot unpack", "set.tar.gz")
    assert left_in(folder) == ["set.tar.gz"]


# What is there already


def test_a_file_that_differs_is_used_with_one_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    (folder / "a.bin").write_bytes(CONTENT)
    file = Published("a.bin", md5(b"other"), "http://127.0.0.1:9/a.bin")
    [verdict] = fetch([file], folder)
    assert (verdict.text, verdict.md5) == ("differs", md5(CONTENT))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("warning: ")
    assert err.count("\n") == 1
    assert str(folder / "a.bin") in err
    with pytest.raises(MixMatchError) as error:
        fetch([file], folder, strict=True)
    one_line(error, folder / "a.bin", md5(CONTENT), md5(b"other"))


def test_md5_is_remembered_until_the_file_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    path = folder / "a.bin"
    path.write_bytes(CONTENT)
    hashed: list[Path] = []
    honest = files._hash
    monkeypatch.setattr(files, "_hash", lambda path: hashed.append(path) or honest(path))
    file = Published("a.bin", md5(CONTENT), "")
    for _ in range(3):
        assert verify([file], folder)[0].text == "as published"
    assert hashed == [path]
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(0, 1))
    assert verify([file], folder)[0].text == "differs"
    assert hashed == [path, path]
    (folder / ".mixmatch-cache/md5.json").write_text("{broken")
    assert verify([file], folder)[0].text == "differs"


def test_a_strict_check_believes_no_sums_that_came_with_the_data(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.bin").write_bytes(CONTENT)
    file = Published("a.bin", md5(b"other"), "")
    stat = (folder / "a.bin").stat()
    (folder / ".mixmatch-cache").mkdir()
    lie = {"a.bin": [stat.st_size, stat.st_mtime_ns, md5(b"other")]}
    (folder / ".mixmatch-cache/md5.json").write_text(json.dumps(lie))
    assert verify([file], folder)[0].text == "as published"
    assert verify([file], folder, strict=True)[0].text == "differs"
    with pytest.raises(MixMatchError, match="not the published file"):
        fetch([file], folder, strict=True)


def test_no_file_is_read_that_is_far_larger_than_any_published_one(folder: Path) -> None:
    """A file of a terabyte takes no place on a disk, and hours to read."""
    folder.mkdir()
    for name in ("a.bin", "names.txt"):
        with (folder / name).open("wb") as file:
            file.truncate(2**40)
    with pytest.raises(OSError, match="more than the"):
        verify([Published("a.bin", md5(CONTENT), "")], folder)
    with pytest.raises(OSError, match="more than the"):
        files.read_text(folder / "names.txt")


def test_choice_of_layout(folder: Path) -> None:
    folder.mkdir()
    archives = [Archive("", "", f"{name}.tar.gz") for name in ("one", "two")]
    one, two = (tuple(Published(f"{a.name[:3]}/{i}", None, a) for i in range(2)) for a in archives)
    assert choose([one, two], folder) == one
    (folder / "two").mkdir()
    (folder / "two/0").touch()
    assert choose([one, two], folder) == two
    (folder / "one.tar.gz").touch()
    assert choose([one, two], folder) == one
    (folder / "two/1").touch()
    assert choose([one, two], folder) == two


# The cache of decoded images


def rows(start: int, count: int) -> np.ndarray:
    return np.arange(start, start + count * 12, dtype=np.int64).astype(np.uint8).reshape(count, 2, 2, 3)


def test_decoded_once_and_again_when_a_file_changes(folder: Path) -> None:
    folder.mkdir()
    source = folder / "a.bin"
    source.write_bytes(b"1")
    first = cached_array(folder, "set-train", [source], (5, 2, 2, 3), [rows(0, 3), rows(36, 2)])
    other = cached_array(folder, "set", [source], (1, 2, 2, 3), [rows(0, 1)])
    assert isinstance(first, np.memmap)
    assert not first.flags.writeable
    np.testing.assert_array_equal(first, rows(0, 5))

    def never() -> Iterator[np.ndarray]:
        raise AssertionError("decoded again")
        yield

    again = cached_array(folder, "set-train", [source], (5, 2, 2, 3), never())
    np.testing.assert_array_equal(again, first)

    source.write_bytes(b"12")
    changed = cached_array(folder, "set-train", [source], (4, 2, 2, 3), [rows(7, 4)])
    np.testing.assert_array_equal(changed, rows(7, 4))
    np.testing.assert_array_equal(first, rows(0, 5))
    np.testing.assert_array_equal(other, rows(0, 1))
    kept = sorted(path.name.rsplit("-", 1)[0] for path in (folder / ".mixmatch-cache").iterdir())
    assert kept == ["set", "set-train"], "the stale one is gone, the other data set's is not"


def test_a_damaged_cache_is_decoded_again(folder: Path) -> None:
    folder.mkdir()
    source = folder / "a.bin"
    source.write_bytes(b"1")
    cached_array(folder, "set", [source], (5, 2, 2, 3), [rows(0, 5)])
    [path] = (folder / ".mixmatch-cache").glob("*.npy")
    for content in (b"", path.read_bytes()[:150], b"junk" * 100):
        path.unlink()
        path.write_bytes(content)
        np.testing.assert_array_equal(cached_array(folder, "set", [source], (5, 2, 2, 3), [rows(0, 5)]), rows(0, 5))


def test_a_link_in_the_place_of_the_cache_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder, outside = tmp_path / "data", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "a.bin").write_bytes(b"1")
    (folder / ".mixmatch-cache").symlink_to(outside)
    cached_array(folder, "set", [folder / "a.bin"], (1, 2, 2, 3), [rows(0, 1)])
    assert list(outside.iterdir()) == []
    assert cache_folder(folder).is_relative_to(tmp_path / "home/mixmatch/decoded")


def test_cache_of_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folders = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "a.bin").write_bytes(b"1")
        (folder / ".mixmatch-cache").write_text("a file where the folder would be")
        array = cached_array(folder, "set", [folder / "a.bin"], (1, 2, 2, 3), [rows(number, 1)])
        np.testing.assert_array_equal(array, rows(number, 1))
        assert cache_folder(folder).is_relative_to(tmp_path / "home/mixmatch/decoded")
    assert len(list((tmp_path / "home").rglob("*.npy"))) == 2


def test_decoding_to_a_full_disk(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"1")
    big = np.zeros((1000, 32, 32, 3), np.uint8)
    with largest_file(1_000_000), pytest.raises(MixMatchError) as error:
        cached_array(folder, "set", [folder / "a.bin"], (2000, 32, 32, 3), [big, big])
    one_line(error, folder, "free some space", "6 MB")
    assert list((folder / ".mixmatch-cache").iterdir()) == []


def test_an_error_while_decoding_leaves_nothing(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"1")

    def fails() -> Iterator[np.ndarray]:
        yield rows(0, 1)
        raise MixMatchError("damaged")

    with pytest.raises(MixMatchError, match="damaged"):
        cached_array(folder, "set", [folder / "a.bin"], (2, 2, 2, 3), fails())
    assert list((folder / ".mixmatch-cache").iterdir()) == []


def test_two_processes_decode_at_once(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"1")
    program = """if True:
        import sys, time, pathlib, hashlib, numpy as np
        from mixmatch.data.cache import cached_array
        folder = pathlib.Path(sys.argv[1])
        def pieces():
            for i in range(20):
                time.sleep(0.02)
                yield np.full((10, 8, 8, 3), i, np.uint8)
        print(hashlib.sha256(cached_array(folder, "set", [folder / "a.bin"], (200, 8, 8, 3), pieces())).hexdigest())
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(folder)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    outputs = {process.communicate()[0].strip() for process in both}
    assert outputs == {hashlib.sha256(np.repeat(np.arange(20, dtype=np.uint8), 10 * 8 * 8 * 3).tobytes()).hexdigest()}
    assert len(list((folder / ".mixmatch-cache").iterdir())) == 1


def test_what_a_killed_decode_left_goes_when_the_next_begins(folder: Path) -> None:
    folder.mkdir()
    source = folder / "a.bin"
    source.write_bytes(b"1")
    program = """if True:
        import os, signal, sys
        from pathlib import Path

        import numpy as np

        from mixmatch.data.cache import cached_array

        def pieces():
            yield np.zeros((1, 2, 2, 3), np.uint8)
            if sys.argv[2] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            print("at work", flush=True)
            sys.stdin.read()
            yield np.ones((1, 2, 2, 3), np.uint8)

        folder = Path(sys.argv[1])
        print(cached_array(folder, "set", [folder / "a.bin"], (2, 2, 2, 3), pieces()).sum(), flush=True)
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    killed, living = (
        subprocess.Popen(
            [sys.executable, "-c", program, str(folder), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for how in ("killed", "living")
    )
    assert killed.communicate()[0] == ""
    assert living.stdout is not None
    assert living.stdout.readline() == "at work\n"
    parts = list((folder / ".mixmatch-cache").glob(".*.part"))
    assert len(parts) == 2
    for part in parts:
        os.utime(part, (time.time() - 3600,) * 2)
    source.write_bytes(b"12")
    cached_array(folder, "set", [source], (1, 2, 2, 3), [rows(0, 1)])
    assert len(list((folder / ".mixmatch-cache").glob(".*.part"))) == 1
    assert living.communicate("")[0] == "12\n", "what is being written stays"


def test_what_was_killed_a_moment_before_goes_in_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "a.bin").touch()
    part = cache_folder(folder) / f".set-{'0' * 16}.npy.{'0' * 32}.part"
    part.touch()
    monkeypatch.setattr(cache, "QUIET", 0.1)

    def slow() -> Iterator[np.ndarray]:
        time.sleep(0.2)
        yield np.zeros((1, 2, 2, 3), np.uint8)

    cached_array(folder, "set", [folder / "a.bin"], (1, 2, 2, 3), slow())
    assert not part.exists()


def test_who_has_let_go_of_a_file_may_be_about_to_rename_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = folder / f".set-{'0' * 16}.npy.{'0' * 32}.part"
    folder.mkdir()
    part.touch()
    os.utime(part, (time.time() - 3600,) * 2)

    def ended(handle: int) -> bool:
        part.write_bytes(b"the end")
        return try_lock(handle)

    monkeypatch.setattr(cache, "try_lock", ended)
    cache.remove_abandoned(folder / f"set-{'1' * 16}.npy")
    assert part.exists()


def test_what_a_killed_process_left_goes_after_a_day(tmp_path: Path) -> None:
    old, young = tmp_path / ".a.bin.0.part", tmp_path / ".a.bin.1.part"
    for path in (old, young):
        path.touch()
    os.utime(old, (time.time() - 100_000,) * 2)
    with temporary(tmp_path / "a.bin"):
        pass
    assert not old.exists()
    assert young.exists()
