"""Run programs under supervisord: its configuration, its process, and what `manage.py up` asks it to do."""

import contextlib
import http.client
import os
import shlex
import subprocess
import sys
import xmlrpc.client
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.xmlrpc import SupervisorTransport

from gateway.config import ROOT
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.instance import Instance
from gateway.embedded.programs import Plan, Program
from gateway.embedded.tethered import tethered_here

LOG_BYTES = "10MB"
LOG_BACKUPS = 3
DYING_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """One process as supervisord sees it."""

    name: str  # as supervisord addresses it, "web:web_0"
    program: str
    state: str  # STOPPED STARTING RUNNING BACKOFF STOPPING EXITED FATAL
    pid: int  # 0: none
    exit_status: int
    log: Path

    @property
    def stopped(self) -> bool:
        """Whether no process is there and none will be started."""
        return self.state in ("STOPPED", "EXITED", "FATAL")


def configuration(instance: Instance, programs: Iterable[Program]) -> str:
    """Return supervisord's configuration file."""
    run, log = instance.run_dir, instance.log_dir
    lines = [
        "[supervisord]",
        "nodaemon=true",
        "silent=true",
        f"logfile={_escaped(log / 'supervisord.log')}",
        f"logfile_maxbytes={LOG_BYTES}",
        f"logfile_backups={LOG_BACKUPS}",
        f"pidfile={_escaped(run / 'supervisord.pid')}",
        f"directory={_escaped(ROOT)}",
        "user=root" if os.geteuid() == 0 else "",
        "[unix_http_server]",
        f"file={_escaped(instance.socket_dir / 'supervisor.sock')}",
        "chmod=0700",
        "[supervisorctl]",
        f"serverurl=unix://{_escaped(instance.socket_dir / 'supervisor.sock')}",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
    ]
    for program in programs:
        lines += _section(program, instance)
    return "\n".join(lines) + "\n"


def _section(program: Program, instance: Instance) -> list[str]:
    many = program.processes > 1
    log = instance.log_dir / program.name
    kind = "fcgi-program" if program.listens else "program"
    return [
        f"[{kind}:{program.name}]",
        f"command={_escaped(shlex.join(program.command))}",
        f"socket=tcp://{instance.host}:{instance.port}" if program.listens else "",
        f"numprocs={program.processes}",
        f"process_name=%(program_name)s{'_%(process_num)d' if many else ''}",
        f"stdout_logfile={_escaped(log)}{'_%(process_num)d' if many else ''}.log",
        "redirect_stderr=true",
        f"stdout_logfile_maxbytes={LOG_BYTES}",
        f"stdout_logfile_backups={LOG_BACKUPS}",
        f"autostart={'true' if program.stage == 0 else 'false'}",
        "autorestart=true",
        "startsecs=4",  # an exit before that is a failed start: it backs off
        "startretries=2",  # then FATAL; `up` ends a start with it, and later tries again with a longer pause
        f"stopsignal={program.stop_signal}",
        f"stopwaitsecs={program.stop_seconds}",
        "stopasgroup=false",
        "killasgroup=true",
    ]


class Supervisor:
    """The supervisord of one instance."""

    def __init__(self, instance: Instance, plan: Plan) -> None:
        """Write the configuration and start supervisord, tied to the life of this process."""
        self.instance = instance
        self._programs = plan.programs
        config_file = instance.run_dir / "supervisor.conf"
        config_file.write_text(configuration(instance, plan.programs))
        command = [sys.executable, "-m", "gateway.embedded.supervisord", "-c", str(config_file)]
        with (instance.log_dir / "supervisord.out").open("wb") as output:
            # A session of its own: Ctrl-C on the terminal reaches `up` alone, which stops the rest in order.
            self.process = subprocess.Popen(
                tethered_here(command),
                cwd=ROOT,
                env=dict(plan.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def answers(self) -> bool:
        """Say whether supervisord is up.

        Raises:
            EmbeddedError: it died.
        """
        self.check_alive()
        try:
            self._call("getState")
        except (OSError, http.client.HTTPException):
            return False
        return True

    def check_alive(self) -> None:
        """Raise EmbeddedError when supervisord is gone."""
        if self.process.poll() is not None:
            output = (self.instance.log_dir / "supervisord.out").read_text(errors="replace").strip().splitlines()
            reason = "; ".join(output[-2:]) if output else f"exit status {self.process.returncode}"
            raise EmbeddedError(f"supervisord stopped: {reason}")

    def states(self) -> list[ProcessState]:
        """Return every process's state."""
        self.check_alive()
        answer = self._ask("getAllProcessInfo")
        assert isinstance(answer, list)
        return [_state(info) for info in answer]

    def start(self, names: Sequence[str]) -> None:
        """Start programs without waiting for them."""
        for name in names:
            self._ask("startProcessGroup", name, False)

    def stop(self, names: Sequence[str]) -> None:
        """Ask programs to stop without waiting for them."""
        for name in names:
            self._ask("stopProcessGroup", name, False)

    def signal(self, names: Sequence[str], signal_name: str) -> None:
        """Send a signal to programs that run."""
        for name in names:
            self._ask("signalProcessGroup", name, signal_name)

    def _ask(self, method: str, *arguments: object) -> object:
        """Call a supervisord that is up.

        Raises:
            EmbeddedError: it died, or is dying: its connections go before it does.
        """
        try:
            return self._call(method, *arguments)
        except (OSError, http.client.HTTPException) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(DYING_SECONDS)
            self.check_alive()
            raise EmbeddedError(f"supervisord does not answer: {error or type(error).__name__}") from error

    def _call(self, method: str, *arguments: object) -> object:
        # A connection each time: the transport keeps one that broke.
        address = f"unix://{self.instance.socket_dir / 'supervisor.sock'}"
        with xmlrpc.client.ServerProxy("http://127.0.0.1", SupervisorTransport(None, None, address)) as server:
            return getattr(server.supervisor, method)(*arguments)

    def kill(self) -> None:
        """Kill supervisord; every child is tied to its life and goes with it."""
        self.process.kill()
        self.process.wait()


def _state(info: dict[str, object]) -> ProcessState:
    program, name = str(info["group"]), str(info["name"])
    return ProcessState(
        name=f"{program}:{name}",
        program=program,
        state=str(info["statename"]),
        pid=int(str(info["pid"])),
        exit_status=int(str(info["exitstatus"])),
        log=Path(str(info["stdout_logfile"])),
    )


def _escaped(text: object) -> str:
    return str(text).replace("%", "%%")
