"""Open MPI 4 of Debian's packages that lie unpacked in a folder: what its programs and libraries have to be told."""

from __future__ import annotations

from pathlib import Path


def variables(packages: Path, at: str | None = None, path: str = "") -> dict[str, str]:
    """The environment in which it runs. `packages`: where their `usr` is; `at`: what that folder is called where it runs;
    `path`: what PATH is besides.
    """
    usr = at or str(packages)
    libraries = f"{usr}/{next(packages.glob('lib/*/openmpi')).parent.relative_to(packages)}"
    return {
        "OPAL_PREFIX": usr,
        "OPAL_LIBDIR": libraries,
        "OPAL_PKGLIBDIR": f"{libraries}/openmpi/lib/openmpi3",
        "PMIX_INSTALL_PREFIX": usr,
        "PMIX_PKGLIBDIR": f"{libraries}/pmix2/lib/pmix",
        "LD_LIBRARY_PATH": f"{libraries}:{libraries}/openmpi/lib:{libraries}/pmix2/lib",
        "PATH": f"{usr}/bin:{path}",
        # Drivers of networks that no machine of ours has.
        "OMPI_MCA_mca_base_component_show_load_errors": "0",
    }
