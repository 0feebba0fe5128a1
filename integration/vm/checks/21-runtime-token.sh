# A container with a runtime token gets its secrets back from the daemon, through the sandbox of the units.
. "$VM/lib.sh"
out=$(printf hunter2-token | agent-cli run --user nobody --runtime-token token --file db/password=@- --redact none -- \
    sh -c 'agent-cli secrets --token-file /etc/cf-service-bindings/token --file /etc/cf-service-bindings/db/password')
same hunter2-token "$out" 'the secret'
out=$(printf hunter2-token | agent-cli run --user nobody --runtime-token token --file db/password=@- -- \
    sh -c 'echo nonsense-nonsense >/tmp/t; agent-cli secrets --token-file /tmp/t --file /etc/cf-service-bindings/db/password 2>&1 || echo refused')
has "$out" '^refused$'
