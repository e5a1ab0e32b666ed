"""The part of a Kubernetes API server that Sluice's parts use, for tests without a cluster.

It keeps objects in memory and calls the webhook as a real one does, with `failurePolicy: Ignore`. It
checks neither rights nor schemas, and there is no scheduler and no kubelet: the test plays those.
It says where it listens. Each line of its input is where the webhook is from then on, and it ends with
its input.
"""

import base64
import copy
import json
import ssl
import sys
import threading
import time
import urllib.parse
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LABEL = "sluice.dev/injected"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/sluice"

# By path: what kubectl asks before it asks for pods.
DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]}
        ],
    },
}

changed = threading.Condition()
version = 0
# By path: pods, Secrets and events, the namespace and the webhook's configuration.
objects = {
    "/api/v1/namespaces/kube-system": {"metadata": {"uid": str(uuid.uuid4())}},
    "/apis/resource.k8s.io/v1/deviceclasses/gpu.sluice.dev": {"metadata": {"uid": str(uuid.uuid4())}},
    CONFIGURATION: {
        "metadata": {"uid": str(uuid.uuid4())},
        "webhooks": [{"name": "pods.sluice.dev", "clientConfig": {}}],
    },
}
# What has happened to pods: the version, the kind of event, and the pod.
history = []


def merge(target, patch, strategic):
    """Applies a merge patch; of the strategic one, `$patch: delete` and lists whose items have names or types."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            merge(target.setdefault(name, {}), value, strategic)
        elif strategic and isinstance(value, list) and all("name" in item or "type" in item for item in value):
            items = target.setdefault(name, [])
            for item in value:
                key = "name" if "name" in item else "type"
                known = [other for other in items if other[key] == item[key]]
                if item.get("$patch") == "delete":
                    items[:] = [other for other in items if other not in known]
                elif known:
                    merge(known[0], item, strategic)
                else:
                    items.append(item)
        else:
            target[name] = value


def listed(items):
    """The answer to a request for pods, or for other objects where nothing reads more than the items."""
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": str(version)}, "items": items}


def note(kind, pod):
    """Gives a pod its next version, and wakes who watches."""
    global version
    with changed:
        version += 1
        pod["metadata"]["resourceVersion"] = str(version)
        history.append((version, kind, copy.deepcopy(pod)))
        changed.notify_all()


def admitted(pod, webhook_url):
    """The pod after the webhook; as it was where the webhook is away. Raises what the webhook refuses."""
    bundle = objects[CONFIGURATION]["webhooks"][0]["clientConfig"].get("caBundle")
    asks = any(name.startswith("sluice.dev/") for name in pod["metadata"].get("annotations", {}))
    if not asks or not bundle:
        return pod
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": str(uuid.uuid4()), "object": pod, "operation": "CREATE"},
    }
    trust = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    request = urllib.request.Request(webhook_url, json.dumps(review).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
            response = json.load(answer)["response"]
    except OSError:
        return pod
    if not response["allowed"]:
        raise ValueError(response["status"]["message"])
    for operation in json.loads(base64.b64decode(response.get("patch", "W10="))):
        *parents, last = operation["path"].strip("/").split("/")
        target = pod
        for parent in parents:
            target = target[parent]
        target[last] = operation["value"]
    return pod


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def refuse(self, status, message, name=""):
        reason = "NotFound" if status == 404 else ""
        details = {"name": name}
        self.answer(
            status, {"kind": "Status", "message": message, "code": status, "reason": reason, "details": details}
        )

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        options = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/api/v1/pods" and "watch" in options:
            return self.watch(int(options["resourceVersion"]), float(options["timeoutSeconds"]))
        if url.path in DISCOVERY:
            return self.answer(200, DISCOVERY[url.path])
        if url.path == "/api/v1/pods":
            with changed:
                pods = [o for path, o in objects.items() if "/pods/" in path]
                pods = [pod for pod in pods if pod["metadata"].get("labels", {}).get(LABEL) == "true"]
                return self.answer(200, listed(pods))
        with changed:
            if url.path in objects:
                return self.answer(200, objects[url.path])
            below = [o for path, o in objects.items() if path.startswith(url.path + "/")]
        if url.path.rsplit("/", 1)[-1] in ("events", "secrets", "pods", "resourceslices"):
            return self.answer(200, listed(below))
        self.refuse(404, f"{url.path} not found", url.path.rsplit("/", 1)[-1])

    def watch(self, seen, seconds):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        deadline = time.monotonic() + seconds
        while True:
            with changed:
                news = [entry for entry in history if entry[0] > seen]
                left = deadline - time.monotonic()
                if not news and left > 0:
                    changed.wait(left)
                    continue
            for seen, kind, pod in news:
                if pod["metadata"].get("labels", {}).get(LABEL) == "true":
                    line = json.dumps({"type": kind, "object": pod}).encode() + b"\n"
                    if not self.sent(b"%x\r\n%s\r\n" % (len(line), line)):
                        return
            if not news:
                self.sent(b"0\r\n\r\n")
                return

    def sent(self, data):
        """Whether the other side is still there."""
        try:
            self.wfile.write(data)
        except OSError:
            self.close_connection = True
            return False
        return True

    def do_POST(self):
        path, new = self.path, self.body()
        if path.endswith("/eviction"):
            return self.remove(path.removesuffix("/eviction"))
        if "/namespaces/" in path:
            new["metadata"].setdefault("namespace", path.partition("/namespaces/")[2].split("/")[0])
        target = f"{path}/{new['metadata']['name']}"
        try:
            if path.endswith("/pods"):
                new = admitted(new, self.server.webhook_url)
        except ValueError as refused:
            return self.refuse(422, str(refused))
        with changed:
            if target in objects:
                return self.refuse(409, f"{target} exists")
            # A test may say which, so that it need not ask.
            new["metadata"]["uid"] = new["metadata"].pop("wantedUid", None) or str(uuid.uuid4())
            if path.endswith("/pods"):
                new |= {"kind": "Pod", "apiVersion": "v1", "status": {"phase": "Pending"}}
            new["metadata"]["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            objects[target] = new
        if path.endswith("/pods"):
            note("ADDED", new)
        self.answer(201, new)

    def do_PATCH(self):
        patch = self.body()
        path = self.path.partition("?")[0].removesuffix("/status")
        strategic = self.headers["Content-Type"].startswith("application/strategic")
        with changed:
            known = objects.get(path)
            uid = patch.get("metadata", {}).get("uid")
            if known is None or uid not in (None, known["metadata"]["uid"]):
                return self.refuse(404 if known is None else 409, f"{path} is not there, or is another one")
            merge(known, patch, strategic)
        if "/pods/" in path:
            note("MODIFIED", known)
        self.answer(200, known)

    def do_DELETE(self):
        self.remove(self.path)

    def remove(self, path):
        with changed:
            gone = objects.pop(path, None)
            if gone is None:
                return self.refuse(404, f"{path} not found")
            # As the garbage collector does.
            owned = [
                name
                for name, o in objects.items()
                if any(owner["uid"] == gone["metadata"]["uid"] for owner in o.get("metadata", {}).get("ownerReferences", []))
            ]
            for name in owned:
                del objects[name]
        if "/pods/" in path:
            note("DELETED", gone)
        self.answer(200, gone)


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.webhook_url = ""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    for line in sys.stdin:
        server.webhook_url = line.strip()


main()
