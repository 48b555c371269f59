"""judge.py reads a JSON list of documents in base64 and prints what cloud-init's own code makes of each.

For each: the parts that its handlers get, as "content type sha256", a "-" before a part that no handler takes; and the
cloud-config that they add up to. A document with which cloud-init gives up is an "error".
"""
import base64
import hashlib
import json
import logging
import sys
import tempfile

from cloudinit import handlers, helpers, user_data, util, version
from cloudinit.handlers.boot_hook import BootHookPartHandler
from cloudinit.handlers.cloud_config import CloudConfigPartHandler
from cloudinit.handlers.jinja_template import JinjaTemplatePartHandler
from cloudinit.handlers.shell_script import ShellScriptPartHandler


class Source:
    launch_index = None

    def get_instance_id(self):
        return "i-1"


def judge(document):
    with tempfile.TemporaryDirectory() as top:
        paths = helpers.Paths({"cloud_dir": top, "run_dir": top})
        paths.datasource = Source()
        util.write_file(paths.get_runpath("instance_data_sensitive"), json.dumps({"v1": {}}))
        options = {"paths": paths, "datasource": paths.datasource}
        config = CloudConfigPartHandler(**options)
        script = ShellScriptPartHandler(**options)
        jinja = JinjaTemplatePartHandler(sub_handlers=[config, script], **options)
        hook = BootHookPartHandler(**options)
        taken = sum((h.list_types() for h in (config, script, jinja, hook)), list(handlers.PART_CONTENT_TYPES))
        parts = []

        def part(_, filename, payload, headers):
            kind = headers["Content-Type"]
            raw = payload if isinstance(payload, bytes) else payload.encode("utf-8", "surrogateescape")
            if kind in taken:
                parts.append(kind + " " + hashlib.sha256(raw).hexdigest())
            elif payload:
                parts.append("-" + kind + " " + hashlib.sha256(raw).hexdigest())
            for handler in (config, jinja):  # not what would run a program of the document
                if kind in handler.list_types():
                    handlers.run_part(handler, None, filename, payload, handler.frequency, headers)

        try:
            message = user_data.UserDataProcessor(paths).process(document)
            config.handle_part(None, handlers.CONTENT_START, None, None, None, None)
            handlers.walk(message, part, None)
            config.handle_part(None, handlers.CONTENT_END, None, None, None, None)
        except Exception as e:
            return {"error": str(e) or repr(e)}
        return {"parts": parts, "config": util.load_yaml(util.load_file(config.cloud_fn)) or {}}


def fetch_once(url, **options):
    return fetch(url, **{**options, "retries": 0})


fetch, user_data.read_file_or_url = user_data.read_file_or_url, fetch_once
logging.disable(logging.CRITICAL)
verdicts = [judge(base64.b64decode(d)) for d in json.load(sys.stdin)]
json.dump({"version": version.version_string(), "verdicts": verdicts}, sys.stdout)
