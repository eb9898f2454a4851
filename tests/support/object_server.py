"""A server for tests: files by HTTP, and an object store that speaks S3 and checks each signature by itself.

Nothing here shares code with the product: signatures are computed with hmac and hashlib, from the bytes that arrived.
Paths /BUCKET/KEY need a signature where the server has credentials; a change of replies makes the server fail.
"""

import calendar
import contextlib
import email.utils
import hashlib
import hmac
import http.server
import re
import ssl
import threading
import time
import urllib.parse
import xml.sax.saxutils

MOST_SKEW = 15 * 60  # seconds


class Refused(Exception):
    def __init__(self, status, code, message=""):
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def expected_signature(method, path, query, headers, names, body_hash, scope, moment, secret):
    """Of a request as it arrived: `path` and `query` are the bytes of the request line."""
    pairs = sorted(pair.partition("=")[::2] for pair in query.split("&") if pair)
    # What the client encoded must be what a server would encode.
    canonical_query = "&".join(
        f"{urllib.parse.quote(urllib.parse.unquote(name), safe='-_.~')}="
        f"{urllib.parse.quote(urllib.parse.unquote(value), safe='-_.~')}"
        for name, value in pairs
    )
    canonical_path = urllib.parse.quote(urllib.parse.unquote(path), safe="/-_.~")
    lines = [f"{name}:{' '.join(headers[name].split())}" for name in names]
    request = "\n".join([method, canonical_path, canonical_query, *lines, "", ";".join(names), body_hash])
    day, region, service, _ = scope.split("/")
    key = sign(("AWS4" + secret).encode(), day)
    for part in (region, service, "aws4_request"):
        key = sign(key, part)
    digest = hashlib.sha256(request.encode()).hexdigest()
    return sign(key, "\n".join(["AWS4-HMAC-SHA256", moment, scope, digest])).hex()


class ObjectServer:
    """`objects` maps "BUCKET/KEY" to bytes. `change(request, reply)` may change or delay a reply."""

    def __init__(self, credentials=None, token="", certificate=None, clock=time.time, change=None):
        self.credentials, self.token, self.clock, self.change = credentials or {}, token, clock, change
        self.objects, self.uploads, self.requests = {}, {}, []
        self.bytes = 0
        self.lock = threading.Lock()
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.http.daemon_threads = True
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
            scheme = "https"
        self.host = f"127.0.0.1:{self.http.server_address[1]}"
        self.url = f"{scheme}://{self.host}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def add_folder(self, prefix, folder):
        for path in folder.iterdir():
            if path.is_file():
                self.objects[f"{prefix}/{path.name}"] = path.read_bytes()

    def count(self, method, ending):
        with self.lock:
            return sum(1 for kind, path, _ in self.requests if kind == method and path.endswith(ending))

    def _handler(server):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_one_request(self):
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    super().handle_one_request()
                    return
                self.close_connection = True

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    server._answer(self, body)

            do_GET = do_PUT = do_POST = do_DELETE = handle_any

        return Handler

    def _answer(self, handler, body):
        target = handler.path
        if target.startswith("http://"):  # as a proxy is asked
            target = "/" + target.split("/", 3)[3]
        path, _, query = target.partition("?")
        name = urllib.parse.unquote(path)[1:]
        with self.lock:
            self.requests.append((handler.command, name, handler.path))
        reply = {"status": 200, "headers": {}, "body": b"", "cut": None}
        try:
            self._check(handler, path, query, body)
            self._serve(handler, name, dict(urllib.parse.parse_qsl(query, keep_blank_values=True)), body, reply)
        except Refused as refused:
            text = (
                f"<?xml version='1.0'?><Error><Code>{refused.code}</Code>"
                f"<Message>{xml.sax.saxutils.escape(refused.message)}</Message></Error>"
            )
            reply.update(status=refused.status, body=text.encode())
        if self.change:
            self.change((handler.command, name, query), reply)
        sent = reply["body"] if reply["cut"] is None else reply["body"][: reply["cut"]]
        with self.lock:
            self.bytes += len(sent) if handler.command == "GET" else 0
        handler.send_response(reply["status"])
        for key, value in reply["headers"].items():
            handler.send_header(key, value)
        handler.send_header("Content-Length", str(len(reply["body"])))
        handler.end_headers()
        handler.wfile.write(sent)
        if reply["cut"] is not None:
            handler.close_connection = True

    def _check(self, handler, path, query, body):
        if not self.credentials:
            return
        headers = {key.lower(): value for key, value in handler.headers.items()}
        match = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\S+), ?SignedHeaders=(\S+), ?Signature=([0-9a-f]{64})",
            headers.get("authorization", ""),
        )
        if not match:
            raise Refused(403, "AccessDenied", "no signature")
        key_id, scope, names, signature = match.groups()
        names = names.split(";")
        if key_id not in self.credentials:
            raise Refused(403, "InvalidAccessKeyId")
        moment, body_hash = headers["x-amz-date"], headers["x-amz-content-sha256"]
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names) or names != sorted(names):
            raise Refused(403, "AccessDenied", "headers that must be signed are not")
        skew = self.clock() - calendar.timegm(time.strptime(moment, "%Y%m%dT%H%M%SZ"))
        if abs(skew) > MOST_SKEW:
            handler.date_time_string = lambda timestamp=None: email.utils.formatdate(self.clock(), usegmt=True)
            raise Refused(403, "RequestTimeTooSkewed")
        if hashlib.sha256(body).hexdigest() != body_hash:
            raise Refused(400, "XAmzContentSHA256Mismatch")
        secret = self.credentials[key_id]
        expected = expected_signature(handler.command, path, query, headers, names, body_hash, scope, moment, secret)
        if not hmac.compare_digest(expected, signature):
            raise Refused(403, "SignatureDoesNotMatch", f"the key {key_id} does not fit")
        if headers.get("x-amz-security-token", "") != self.token:
            raise Refused(400, "InvalidToken")

    def _serve(self, handler, name, query, body, reply):
        command = handler.command
        upload = query.get("uploadId")
        if upload is not None and upload not in self.uploads:
            raise Refused(404, "NoSuchUpload")
        if command == "GET":
            self._get(handler, name, reply)
        elif command == "POST" and "uploads" in query:
            upload = f"upload/{len(self.uploads)}+"
            self.uploads[upload] = {}
            reply["body"] = f"<Result><UploadId>{upload}</UploadId></Result>".encode()
        elif command == "PUT" and upload is not None:
            self.uploads[upload][int(query["partNumber"])] = body
            reply["headers"]["ETag"] = f'"{hashlib.md5(body).hexdigest()}"'
        elif command == "POST" and upload is not None:
            parts = self.uploads[upload]
            listed = re.findall(rb"<PartNumber>(\d+)</PartNumber><ETag>\"?([0-9a-f]{32})", body)
            if [int(number) for number, _ in listed] != sorted(parts) or any(
                hashlib.md5(parts[int(number)]).hexdigest().encode() != tag for number, tag in listed
            ):
                raise Refused(400, "InvalidPart")
            self.objects[name] = b"".join(parts[number] for number in sorted(parts))
            del self.uploads[upload]
            reply["body"] = b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>"
        elif command == "DELETE" and upload is not None:
            del self.uploads[upload]
            reply["status"] = 204
        elif command == "PUT":
            self.objects[name] = body
        else:
            raise Refused(400, "InvalidRequest")

    def _get(self, handler, name, reply):
        if name not in self.objects:
            raise Refused(404, "NoSuchKey")
        data = self.objects[name]
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        reply["headers"]["ETag"] = tag
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        if not asked or handler.headers.get("If-Range", tag) != tag:
            reply["body"] = data
            return
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if first >= len(data):
            raise Refused(416, "InvalidRange")
        reply.update(status=206, body=data[first : last + 1])
        reply["headers"]["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
