# Runs one executable of integration/tests with the programs of the payload, one test at a time, because tests count
# the machine's resources before and after.
unset JOURNAL_STREAM INVOCATION_ID
export EXECUTOR_DIST=/payload/dist RUST_TEST_THREADS=1 RUST_BACKTRACE=0
# This kernel cannot id-map a tmpfs such as /run.
export EXECUTOR_STATE_BELOW=/var/tmp
name=$1
shift
# The tests start their own daemons. The package's daemons would not interfere, but would change the counts.
systemctl stop executord.socket executord.service executor-launcher.service
put_back() {
    mv /etc/executor/executor.toml.aside /etc/executor/executor.toml
    systemctl start executor-launcher.service executord.socket executord.service
}
trap put_back EXIT
# At the time limit, the last lines name the test that was running.
out=$(mktemp)
trap 'tail -n 20 "$out"; exit 124' TERM
# Daemons of the tests would also read the package's configuration.
mv /etc/executor/executor.toml /etc/executor/executor.toml.aside
status=0
"/payload/tests/$name" "$@" >"$out" 2>&1 || status=$?
# Without the tests that passed, so that the reasons of failures are within the lines that are shown.
grep -vE '^note: run with|^test .* \.\.\. ok$' "$out"
sed -n 's/^test result: \(.*\); 0 measured.*/note: \1/p' "$out"
exit $status
