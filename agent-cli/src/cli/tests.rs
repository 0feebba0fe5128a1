use super::*;

fn parsed(line: &str) -> Result<Cli, clap::Error> {
    let line: Vec<_> = std::iter::once("agent-cli").chain(line.split_whitespace()).map(OsString::from).collect();
    Cli::parse_line(&line)
}

#[test]
fn command_line_definitions_are_consistent() {
    command().debug_assert();
}

#[test]
fn valid_command_lines_are_parsed() {
    for line in [
        "run -- true",
        "run debian:12",
        "run 127.0.0.1:5000/x/y:tag -- sh -c x",
        "run --pull always --entrypoint /bin/sh oci:/a:b -- -c x",
        "run --registry-user u --registry-password @env:PW debian -- true",
        "image pull --registry-auth-file /a debian --json",
        "image import --form oci-archive --name a/b:1 -",
        "image ls -q",
        "image inspect 0123456789ab",
        "image rm a b",
        "image rm --all-names debian",
        "image prune --unused-for 12h --budget 10G --dry-run",
        "--json run --detach -- sh -c x --not-ours",
        "run --json -d -l a=b -u 1:2 -e A=b -- true",
        "--local run -- true",
        "ps -a --state running,stopping --state created --label a=b --json",
        "ps -aq",
        "inspect web-1",
        "inspect -f {{.State}} web-1 web-2",
        "kill web-1 web-2",
        "kill -s HUP web-1",
        "pull -q debian:12",
        "images -q",
        "rmi a b",
        "load -i a.tar",
        "image load",
        "ps -f status=exited --filter label=a",
        "stats --format {{.CPUPerc}} --no-stream",
        "events --since 10m --until 2026-01-31T12:00:00Z -f event=die",
        "logs --until 1m web-1",
        "container prune -f --filter until=24h",
        "system df --json",
        "logs -f --since 10m web-1",
        "logs --since 2026-01-31T12:00:00Z web-1",
        "wait web-1",
        "run --output /a --output /b/c --output-max 1M --output-to out -- true",
        "run --output-dir /srv --keep -- true",
        "--local run --output-dir /srv --output-to . -- true",
        "cp web-1:/out/a -",
        "cp --json web-1: dir",
        "stop web-1 --grace 1m30s",
        "exec web-1 -- ls -l",
        "exec -it --user 1:2 --dir /x -e A=b -e C web-1 -- sh",
        "attach web-1 --no-stdin",
        "attach --take-over --detach-keys ctrl-a,d web-1",
        "run -it --detach-keys ctrl-] --stop-signal INT -- sh",
        "signal web-1 SIGUSR1",
        "signal web-1 9",
        "rotate web-1 --file a=@- --remove b --signal HUP --expect-generation 3 --json",
        "rm -f a b c",
        "run --vcap-services @x --binding-profile rfc --bind a --bind b --binding-root /b -- true",
        "run --vcap-services @- --vcap-file -- true",
        "run --bind a -- true",
        "rotate web-1 --vcap-services @x --signal HUP",
        "bindings show dir --reveal --json",
        "bindings check --vcap-services @env:VCAP_SERVICES",
        "bindings check dir --bind more --vcap-services @x",
        "bindings write dir --vcap-services @x --vcap-file",
        "events --after 0 --id web-1",
        "secrets --token-file /x --env A",
        "secrets --arg 0 --socket unix:///x",
        "secrets --json",
        "secrets --reveal",
        "run --secret-env A=@b --secret-arg 0=@- --public-file c=@d --redact none --runtime-token t -- x",
        "info --socket /x --json",
        "--address node-1:7443 --tls-cert a --tls-key b --tls-ca c --tls-server-name d ps",
        "--context prod ps -a",
        "context add prod --address a:1 --tls-cert a --tls-key b --tls-ca c --use",
        "context list --json",
        "context show",
        "audit",
        "audit --size 64 --user vcap --rootfs dir:/x --journal --kernel-memory --json",
        "--local audit --size 64K",
        "run debian sh -c x --rm",
        "run --rootfs dir:/x sh -c x",
        "run -it --rm --name a -w /x -m 64m --pids-limit 9 --ulimit nofile=9 --stop-timeout 3 --net host debian:12 sh -c x",
        "run --env-file a --env-file b -d --rm debian",
        "exec web-1 ls -l --color",
        "exec -d web-1 ls",
        "exec -it --detach-keys ctrl-a web-1 sh",
        "run --init --tmpfs /run:size=1m --shm-size 1m --sysctl net.core.somaxconn=1 --add-host a:1.2.3.4 debian",
        "run --platform linux/amd64 debian",
        "run --cpuset-cpus 0-1 --cpuset-mems 0 -m 5m --memory-swap -1 --memory-reservation 1m --oom-score-adj -5 debian",
        "run -c 512 --cpu-period 50000 --cpu-quota -1 --cgroup-parent /a/b -m -1 --pids-limit -1 debian",
        "run --hugepages 2MB=64m --cgroup-conf memory.high=64m --cgroup-conf=memory.low=0 debian",
        "update --cpu-shares 512 --cpu-period 50000 --cpu-quota 5000 --memory -1 a",
        "pod create --cgroup-parent /kubepods/pod1",
        "pod create --userns host --pid host --ipc host",
        "run --userns host --pid host --ipc=host debian",
        "run --pod p --pid container:web debian",
        "run --id-map 0:1000000:65536 debian",
        "pod create --id-map 0:1000000:65536",
        "pod create --cni-arg A=1 --cni-arg B= --cni-bandwidth egress-rate=1,egress-burst=2 --cni-annotation a=b=c",
        "run --device fuse:/dev/fuse:rw --device /dev/kvm --apparmor-profile a --ulimit memlock=1:-1 debian",
        "image pull --platform linux/amd64 debian",
        "exec -it -w /x --env-file a web-1 sh -c x",
        "stop a b c -t 5",
        "stop --time 5 a",
        "wait a b",
        "logs --tail 5 -t web-1",
        "logs -n all web-1",
        "logs --tail -1 web-1",
        "ps --format json",
        "generate man --out /tmp/x",
        "generate completions --out /tmp/x --shell bash --shell zsh",
    ] {
        let cli = parsed(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        cli.command.check(&cli.global).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn invalid_command_lines_are_refused() {
    for line in [
        "",
        "run --registry-user u debian",
        "run --registry-password @- debian",
        "image",
        "image rm",
        "image ls -q --json",
        "run --memory 0 -- true",
        "run --detach-keys meta-x -- true",
        "exec web-1",
        "exec -- true",
        "attach",
        "run --memry 5 -- true",
        "run --network= -- true",
        "run --label a -- true",
        "run --rm --keep debian",
        "exec -di web-1 sh",
        "run --tmpfs x debian",
        "run --add-host a debian",
        "run --sysctl a debian",
        "run --ulimit core=1 debian",
        "run --memory-swap 5m debian",
        "run --oom-score-adj 1001 debian",
        "run --device :x debian",
        "ps --format {{.Nope}}",
        "ps -q --format json",
        "stop",
        "wait",
        "logs --tail x a",
        "run --output /a --output-dir /b --keep -- true",
        "cp web-1:/out",
        "cp",
        "signal web-1 NOPE",
        "signal web-1",
        "rotate",
        "rotate web-1 --signal NOPE",
        "rotate web-1 --expect-generation x",
        "rm",
        "audit --size 63",
        "audit --size 450001",
        "ps -q --json",
        "ps --state gone",
        "inspect",
        "secrets --env A --file /x",
        "secrets --arg x",
        "run --binding-profile cc -- x",
        "run --binding-root /b -- x",
        "run --vcap-file -- x",
        "run --vcap-services @x --vcap-file --bind d -- x",
        "run --vcap-services @x --vcap-file --binding-profile cc -- x",
        "run --vcap-services @x --binding-profile k8s -- x",
        "bindings",
        "bindings write",
        "bindings show dir --vcap-services @x --vcap-file",
        "run --redact some -- x",
    ] {
        assert!(parsed(line).is_err(), "{line}");
    }
    for line in [
        "secrets",
        "--local secrets --env A",
        "--local --socket /x info",
        "--local --address a:1 info",
        "--local --tls-ca a info",
        "--context a --socket /x info",
        "--context a --tls-ca a info",
        "--local run --detach -- x",
        "--local run --keep -- x",
        "run --output /a -- x",
    ] {
        let cli = parsed(line).unwrap();
        assert!(cli.global.check().and_then(|()| cli.command.check(&cli.global)).is_err(), "{line}");
    }
}

#[test]
fn help_reports_the_exit_statuses() {
    let run = command().find_subcommand("run").unwrap().clone().render_long_help().to_string();
    assert!(run.contains("128+N") && run.contains("141") && run.contains("Ctrl-C"), "{run}");
}

#[test]
fn docker_words_give_their_equivalent() {
    for (line, advice) in [
        (&["agent-cli", "rename", "a", "b"][..], "run --name"),
        (&["agent-cli", "create", "a"], "agent-cli start"),
        (&["agent-cli", "run", "--link", "a", "i"], "share a network"),
        (&["agent-cli", "update", "--blkio-weight", "10", "a"], "`--io-weight`"),
        (&["agent-cli", "network", "create", "a"], "`agent-cli network ls`"),
        (&["agent-cli", "network", "rm", "a"], "the operator configures networks"),
        (&["agent-cli", "network", "prune"], "the operator configures networks"),
        (&["agent-cli", "network", "connect", "a", "b"], "`run --network`"),
        (&["agent-cli", "network", "disconnect", "a", "b"], "`run --network`"),
        (&["agent-cli", "container", "ls"], "`agent-cli ps`"),
        (&["agent-cli", "container", "logs", "a"], "`agent-cli logs`"),
        (&["agent-cli", "image", "save", "a"], "skopeo"),
        (&["agent-cli", "history", "i"], "image inspect"),
        (&["agent-cli", "run", "--volumes-from=a", "i"], "--volume"),
        (&["agent-cli", "system", "info"], "`agent-cli info`"),
        (&["agent-cli", "system", "prune"], "`agent-cli image prune`"),
        (&["agent-cli", "image", "prune", "--size"], "`agent-cli system df`"),
        (&["agent-cli", "bake"], "buildah"),
        (&["agent-cli", "run", "-a", "stdout", "i"], "unless `--detach`"),
        (&["agent-cli", "run", "-q", "i"], "2>/dev/null"),
        (&["agent-cli", "top", "a"], "`agent-cli exec ID ps`"),
    ] {
        let line: Vec<OsString> = line.iter().map(Into::into).collect();
        let error = read(&line).expect_err("agent-cli does not have the word").to_string();
        assert!(error.contains(advice) && !error.contains("--cpus"), "{error}");
    }
}
