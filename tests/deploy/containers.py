"""podman with storage, networks and images of its own. It asks no registry: base images are made of Debian's packages."""

import hashlib
import os
import resource
import shutil
import subprocess
from pathlib import Path

from tests.deploy.places import ROOT

CACHE = ROOT / "build/cache"
SUITE = "trixie"  # Debian's release in the Dockerfile's base image
# mmdebstrap makes the base, runc runs it: unlike crun, it can do so where both versions of cgroups are mounted.
NEEDS = ("podman", "runc", "mmdebstrap")


def debian(*packages: str) -> Path:
    """Return a Debian with these packages as a tar file. It is made once and kept."""
    name = hashlib.sha256(" ".join((SUITE, *packages)).encode()).hexdigest()[:16]
    made = CACHE / f"debian-{name}.tar"
    if not made.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = CACHE / f"part-{os.getpid()}-{made.name}"
        options = ("--quiet", "--variant=minbase", '--aptopt=APT::Install-Recommends "false"')
        subprocess.run(("mmdebstrap", *options, f"--include={','.join(packages)}", SUITE, part), check=True)
        part.rename(made)
    return made


def pip_settings() -> list[str]:
    """Return the files that tell pip here where packages are, for those who install elsewhere."""
    named = ("/etc/pip.conf", os.environ.get("PIP_CERT", ""))
    return [path for path in named if path and Path(path).exists()]


class Podman:
    def __init__(self, folder: Path) -> None:
        assert os.geteuid() == 0, "containers that are like those of a server need root"
        self.folder = folder
        # podman's own limits are more than root may have where CAP_SYS_RESOURCE is missing.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        storage, settings = folder / "storage.conf", folder / "containers.conf"
        storage.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n',
        )
        settings.write_text(
            f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]\n'
            f'[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            f'[network]\nnetwork_config_dir = "{folder}/networks"\n'
        )
        self.environ = (
            os.environ
            | {
                "CONTAINERS_CONF": str(settings),
                "CONTAINERS_STORAGE_CONF": str(storage),
                "DISABLE_HC_SYSTEMD": "true",  # systemd may not run here; it would only say when to check a container's health
            }
        )

    def __call__(self, *arguments: str | Path, ok: bool = True) -> str:
        return self.run("podman", *arguments, ok=ok)

    def run(self, *command: str | Path, ok: bool = True, **environ: str) -> str:
        done = subprocess.run(
            command,
            env=self.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert done.returncode == 0 or not ok, f"{command}\n{done.stdout[-5000:]}"
        return done.stdout

    def import_debian(self, name: str, *packages: str) -> str:
        self("import", debian(*packages), name)
        return name

    def build(self, name: str, dockerfile: Path, context: Path, argument: str) -> str:
        """Build an image as the documents say. pip in it finds packages as pip here does."""
        mounts = [f"--volume={path}:{path}:ro" for path in pip_settings()]
        options = ("--format=docker", "--pull=never", "--network=host", f"--build-arg={argument}")
        self("build", *options, *mounts, "-f", dockerfile, "-t", name, context)
        return name

    def remove_everything(self) -> None:
        self("system", "reset", "--force", ok=False)
        shutil.rmtree(self.folder, ignore_errors=True)
