"""The fields of Kubernetes objects that a chart of FLARE's may use, written down by hand from the API's reference.

A misspelt field is no error to Helm, and to Kubernetes only a warning: the object then lacks what was meant.
"""

from __future__ import annotations

from typing import Any

ANY: dict = {}
_META = {"name": ANY, "namespace": ANY, "labels": ANY, "annotations": ANY}
_MOUNT = {"name": ANY, "mountPath": ANY, "readOnly": ANY, "subPath": ANY}
_PORT = {"name": ANY, "containerPort": ANY, "hostPort": ANY, "protocol": ANY}
_CONTAINER = {
    "name": ANY, "image": ANY, "imagePullPolicy": ANY, "command": ANY, "args": ANY, "env": ANY, "ports": _PORT,
    "resources": {"requests": ANY, "limits": ANY}, "volumeMounts": _MOUNT, "securityContext": ANY,
}  # fmt: skip
_VOLUME = {
    "name": ANY, "persistentVolumeClaim": {"claimName": ANY, "readOnly": ANY}, "configMap": {"name": ANY, "items": ANY},
    "secret": {"secretName": ANY, "items": ANY}, "emptyDir": ANY,
}  # fmt: skip
_POD = {
    "serviceAccountName": ANY, "imagePullSecrets": ANY, "securityContext": ANY, "nodeSelector": ANY,
    "volumes": _VOLUME, "containers": _CONTAINER, "initContainers": _CONTAINER,
}  # fmt: skip
_DEPLOYMENT = {
    "replicas": ANY, "strategy": {"type": ANY}, "selector": {"matchLabels": ANY},
    "template": {"metadata": _META, "spec": _POD},
}  # fmt: skip
_SERVICE_PORT = {"name": ANY, "protocol": ANY, "port": ANY, "targetPort": ANY, "nodePort": ANY}
_SERVICE = {"type": ANY, "loadBalancerIP": ANY, "selector": ANY, "ports": _SERVICE_PORT}
_RULE = {"apiGroups": ANY, "resources": ANY, "verbs": ANY}
_RBAC = "rbac.authorization.k8s.io/v1"
KINDS = {
    ("apps/v1", "Deployment"): {"spec": _DEPLOYMENT},
    ("v1", "Service"): {"spec": _SERVICE},
    ("v1", "ServiceAccount"): {"automountServiceAccountToken": ANY},
    ("v1", "ConfigMap"): {"data": ANY},
    (_RBAC, "Role"): {"rules": _RULE},
    (_RBAC, "RoleBinding"): {
        "roleRef": {"apiGroup": ANY, "kind": ANY, "name": ANY},
        "subjects": {"kind": ANY, "name": ANY, "namespace": ANY},
    },
}
_COMMON = {"apiVersion": ANY, "kind": ANY, "metadata": _META}


def unknown_fields(found: dict) -> list[str]:
    """The fields of an object that its kind does not have, and what every object needs and this one lacks."""
    fields = KINDS.get((str(found.get("apiVersion")), str(found.get("kind"))))
    if fields is None:
        return [f"no kind {found.get('kind')} of {found.get('apiVersion')}"]
    lacking = [] if (found.get("metadata") or {}).get("name") else ["metadata.name is missing"]
    return lacking + _unknown(found, _COMMON | fields, "")


def _unknown(value: Any, fields: dict, where: str) -> list[str]:
    if isinstance(value, list):
        return [problem for entry in value for problem in _unknown(entry, fields, where)]
    if not fields or not isinstance(value, dict):
        return []
    strange = [f"{where}.{key}" for key in value if key not in fields]
    return strange + [p for key in value if key in fields for p in _unknown(value[key], fields[key], f"{where}.{key}")]
