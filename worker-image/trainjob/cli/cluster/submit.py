"""`tj submit`: create TrainJobs of a manifest, or of a script whose code travels along; then show them if asked to.

How the code travels is `submit_code.py`; here is what the options mean.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from trainjob.cli import manifest, overlay
from trainjob.cli.cluster import connect, pod_options, submit_code, watch
from trainjob.cli.errors import CommandError
from trainjob.launch import job as jobs
from trainjob.launch.cluster import follow, kubernetes
from trainjob.launch.handover import carry
from trainjob.screen import display as displays
from trainjob.screen import streams, wording
from trainjob_api import contract, defaults
from trainjob_api.contract import CLI_OK, CLI_USAGE, ENV_VERBOSE, TRACKERS_NO_FOLDER, TRACKERS_OF_FILES

Document = dict[str, Any]

SCRIPT_ONLY = ("image", "gpus", "cpu", "memory", "template")


def submit(args: argparse.Namespace) -> int:
    """Create the jobs; with --wait or --logs the exit code of the one there is."""
    _check(args)
    place = connect.connect(args)
    documents = _from_file(args, place) if args.file else [_from_script(args, place.namespace)]
    documents = [pod_options.put(document, _pod_options(args)) for document in documents]
    if (args.wait or args.logs) and len(documents) > 1:
        raise CommandError(
            f"{args.file} holds {len(documents)} TrainJobs; one can be watched",
            next_step=f"tj submit -f {args.file}, then tj logs NAME -f",
            code=CLI_USAGE,
        )
    for document in documents:
        overlay.parse(document, _options(args), command="submit", file=args.file)
    made = [_create(args, place, document) for document in documents]
    if args.dry_run or not (args.wait or args.logs):
        return CLI_OK
    return _show(
        args, connect.Place(place.api, made[0]["metadata"]["namespace"], place.flags), made[0]["metadata"]["name"]
    )


def _check(args: argparse.Namespace) -> None:
    manifest.script_or_file(
        args.script, args.file, verb="submit", forms="tj submit -f FILE, or tj submit train.py --image IMAGE"
    )
    if args.script is not None and not args.image and not args.template:
        raise CommandError(
            "a script needs an image to run in",
            next_step=f"tj submit {args.script} --image IMAGE (Python 3.9 or newer and what the script imports)",
            code=CLI_USAGE,
        )
    if args.file is None:
        return
    given = [f"--{name}" for name in SCRIPT_ONLY if getattr(args, name) is not None] + (
        ["--volume"] if args.volume else []
    )
    if given:
        raise CommandError(
            f"{', '.join(given)}: a manifest says this itself",
            next_step=f"put it into the template of {args.file}",
            code=CLI_USAGE,
        )
    if args.script_args:
        raise CommandError(
            "a manifest takes nothing after --",
            next_step=f"put the arguments into the container's command in {args.file}",
            code=CLI_USAGE,
        )


def _options(args: argparse.Namespace) -> overlay.Options:
    return overlay.Options(
        name=jobs.job_name(args.name) if args.name else None,
        workers=args.workers,
        processes_per_worker=args.processes_per_worker,
        storage=args.storage,
        s3_endpoint=args.s3_endpoint,
        s3_region=args.s3_region,
        s3_secret=args.s3_secret,
        s3_ca_config_map=args.s3_ca_config_map,
        keep=args.keep,
        strict=args.strict,
        on_upload_failure=args.on_upload_failure,
        fresh=args.fresh,
        max_failures=args.max_failures,
        hang=args.hang,
        hang_after=args.hang_after,
        prefork=args.prefork,
        preload=args.preload,
        spare_workers=args.spare_workers,
        track=args.track,
        env=args.env,
    )


def _pod_options(args: argparse.Namespace) -> pod_options.PodOptions:
    return pod_options.PodOptions(
        labels=args.label,
        node_selector=args.node_selector,
        tolerations=args.toleration,
        secret_variables=[pod_options.SecretVariable(*each) for each in args.secret_env],
        secrets=args.env_from_secret,
        pull_secrets=args.pull_secret,
        service_account=args.service_account,
        restricted=args.restricted,
    )


def _from_file(args: argparse.Namespace, place: connect.Place) -> list[Document]:
    others: list[str] = []
    found = [overlay.overlay(document, _options(args)) for document in manifest.read(args.file, others)]
    if others:
        streams.say(
            f"tj  | {args.file} also holds {', '.join(others)}: only TrainJobs are created here, `kubectl apply -f "
            f"{args.file}` takes them all"
        )
    for document in found:
        metadata = document.get("metadata")
        if not isinstance(metadata, dict):
            continue  # validation says so
        written = metadata.get("namespace")
        if written and args.namespace and written != args.namespace:
            raise CommandError(
                f"{args.file} says namespace {written}, and -n says {args.namespace}",
                next_step="leave one of them out",
                code=CLI_USAGE,
            )
        metadata.setdefault("namespace", place.namespace)
    return found


# --- A script ---------------------------------------------------------------------------------------------------------


def _from_script(args: argparse.Namespace, namespace: str) -> Document:
    """The TrainJob of a script, still without its code."""
    script = args.script if args.no_code or args.module else _inside(args.code, args.script)
    command = ("python", *(("-m",) if args.module else ()), script, *args.script_args)
    job = jobs.from_script(jobs.ScriptJob(command=command, name=args.name, gpus_per_worker=args.gpus or 0))
    found = kubernetes.lean(job, namespace)
    if args.template:
        given = pod_options.template_of(manifest.documents(args.template), args.template)
        found["spec"]["template"] = kubernetes.over_template(given, found["spec"]["template"])
    found = overlay.overlay(found, _options(args))
    container = carry.trainer(found)
    container["image"] = args.image or _image_of(args.template, container)
    amounts = {name: value for name, value in (("cpu", args.cpu), ("memory", args.memory)) if value}
    if amounts:
        resources = container.setdefault("resources", {})
        resources["requests"] = amounts
        resources["limits"] = {**resources.get("limits", {}), **amounts}
    for number, (source, path) in enumerate(args.volume):
        volume = (
            {"hostPath": {"path": source}}
            if source.startswith("/")
            else {"persistentVolumeClaim": {"claimName": source}}
        )
        spec = found["spec"]["template"]["spec"]
        spec["volumes"] = [*(spec.get("volumes") or []), {"name": f"volume-{number}", **volume}]
        container["volumeMounts"] = [
            *(container.get("volumeMounts") or []),
            {"name": f"volume-{number}", "mountPath": path},
        ]
    mounts = [str(mount.get("mountPath")) for mount in container.get("volumeMounts") or ()]
    for option, folder in _folders(args):
        if not any(submit_code.below(folder, mount) is not None for mount in mounts):
            raise CommandError(
                f"{option} is on no volume of the pods, so it would end with each of them",
                next_step=f"mount one there: --volume CLAIM:{folder} (`kubectl get pvc -n {namespace}` lists the "
                "claims)",
                code=CLI_USAGE,
            )
    return found


def _folders(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Those that options name, each with its option."""
    if args.storage and not jobs.is_s3(args.storage):
        yield f"--storage {args.storage}", args.storage
    for word in args.track:
        kind, _, folder = word.partition("=")
        if folder and kind in TRACKERS_OF_FILES and not re.match(TRACKERS_NO_FOLDER, word):
            yield f"--track {word}", folder


def _image_of(template: str, container: Document) -> str:
    """What the template says; ours has none without --image. Raises CommandError."""
    image = container.get("image")
    if not image or image == jobs.LOCAL_IMAGE:
        raise CommandError(
            f"a script needs an image to run in, and {template} names none for the container {container['name']}",
            next_step="add --image IMAGE, or an image there",
            code=CLI_USAGE,
        )
    return str(image)


def _inside(folder: str, script: str) -> str:
    """The script's path relative to the folder that travels. Raises CommandError."""
    root = os.path.abspath(folder)
    for candidate in (os.path.abspath(script), os.path.join(root, script)):
        if os.path.isfile(candidate):
            name = os.path.relpath(candidate, root)
            if name.startswith(".."):
                raise CommandError(
                    f"{script} is not inside {root}, whose files travel",
                    next_step=f"tj submit {script} --code {os.path.dirname(candidate)} ...",
                    code=CLI_USAGE,
                )
            return name.replace(os.sep, "/")
    raise CommandError(
        f"there is no file {script} in {root}",
        next_step="check the path; --no-code says that it is a path in the image",
    )


# --- Creating it ------------------------------------------------------------------------------------------------------


def _create(args: argparse.Namespace, place: connect.Place, document: Document) -> Document:
    carried, told = None, ""
    if args.file is None and not args.no_code:
        with connect.refusals():
            must = [] if args.module else [_inside(args.code, args.script)]
            document, carried, told = submit_code.with_code(args, document, must)
    namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
    if args.dry_run:
        _print(*([carried] if carried else []), document)
        return document
    from trainjob.launch.cluster import cluster_run, jobs_api

    with connect.refusals():
        if args.replace:
            cluster_run.make_room(place.api, namespace, name, whatever=True)
        made = jobs_api.create(place.api, document, carried)
    streams.write(sys.stdout, f"{contract.KIND.lower()}.{contract.GROUP}/{name} created in namespace {namespace}")
    job = jobs_api.read(made)
    size = (
        f"{wording.count(job.spec.workers, 'worker')} with "
        f"{wording.count(defaults.processes_per_worker(job.spec), 'process')} each"
    )
    storage = defaults.job_storage(job)
    notes = [
        f"tj  | {size}; "
        + (f"checkpoints in {storage}" if storage else "no storage: checkpoints survive processes, not pods")
    ]
    notes += [f"tj  | code: {told}"] if told else []
    if not (args.wait or args.logs):
        notes.append(f"next: `tj logs {name}{place.flags} -f` follows it, `tj status {name}{place.flags}` shows it")
    streams.say(*notes)
    return made


def _print(*documents: Document) -> None:
    import yaml

    print(yaml.safe_dump_all(documents, sort_keys=False), end="")


def _show(args: argparse.Namespace, place: connect.Place, name: str) -> int:
    wanted = follow.Wanted(namespace=place.namespace, name=name, logs=args.logs)
    display = displays.choose(plain=args.plain, verbose=dict(args.env).get(ENV_VERBOSE) == "1")
    return watch.conclude(place, name, watch.watch(place, wanted, display))
