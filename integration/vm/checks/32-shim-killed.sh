# If a shim is killed, its container is killed, the launcher wipes the files, and the result reports both.
. "$VM/lib.sh"
printf secret-of-the-lost | run -d --id lost --file a=@- -- sleep 1000
kill -9 $(shims)
same 125 "$(status_of agent-cli wait lost)" 'exit status'
result=$(agent-cli inspect --json lost | field '["result"]')
has "$result" 'supervisor_lost'
has "$result" "'wiped_by': 'launcher'"
agent-cli rm lost
same '' "$(cgroups)" 'cgroups of containers'
