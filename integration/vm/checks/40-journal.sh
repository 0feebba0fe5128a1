# Each line in the journal has its own severity and does not show its prefix, and errors have the severity of
# errors.
. "$VM/lib.sh"
run -d --id noisy -- sleep 1000
kill -9 $(shims)
agent-cli wait noisy || true
agent-cli rm noisy
for unit in executord executor-launcher; do
    journalctl -u $unit -o json --no-pager _TRANSPORT=stdout | python3 -c '
import collections, json, sys
seen = collections.Counter()
for line in sys.stdin:
    entry = json.loads(line)
    message = entry.get("MESSAGE")
    if not isinstance(message, str):
        continue
    assert not message.startswith("<"), message
    seen[entry["PRIORITY"]] += 1
assert "6" in seen, seen
if sys.argv[1] == "executor-launcher":
    assert "3" in seen or "4" in seen, ("control: the kill of a shim is logged as a warning or an error", seen)
print("note:", sys.argv[1], "lines by severity:", dict(sorted(seen.items())))' $unit
done
