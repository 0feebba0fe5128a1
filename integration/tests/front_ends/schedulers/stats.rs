//! Tests the resource counters of containers.

use std::collections::HashMap;

use executor_proto::v1::{
    ContainerStats, RunRequest, State, StatsRequest, StatsResponse, WatchStatsRequest, WatchStatsResponse,
};
use integration::api::ending;
use integration::daemon::{Daemon, kill};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::{cli, wait};
use tonic::{Code, Status};

/// Uses the CPU for a while, writes 8 MiB into memory and sleeps.
const WORK: &str = "head -c 8388608 /dev/zero >/dev/shm/x; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; \
                    sleep 100000";

fn stats(daemon: &Daemon, request: StatsRequest) -> Result<StatsResponse, Status> {
    daemon.api.block_on(daemon.api.rpc().stats(request)).map(tonic::Response::into_inner)
}

fn stats_of(daemon: &Daemon, ids: &[&str]) -> Vec<ContainerStats> {
    let ids = ids.iter().map(|id| (*id).into()).collect();
    stats(daemon, StatsRequest { ids, ..StatsRequest::default() }).unwrap().containers
}

fn watch(daemon: &Daemon, request: WatchStatsRequest) -> Result<Vec<WatchStatsResponse>, Status> {
    daemon.api.block_on(async {
        let mut stream = daemon.api.rpc().watch_stats(request).await?.into_inner();
        let mut all = Vec::new();
        while let Some(message) = stream.message().await? {
            all.push(message);
        }
        Ok(all)
    })
}

fn worked(daemon: &Daemon, request: RunRequest) -> String {
    let id = daemon.api.started(request).id;
    wait::until("the work is done", || daemon.api.logs_so_far(&id).contains("done").then_some(()));
    id
}

#[test]
fn container_usage_is_counted() {
    let daemon = Daemon::start();
    let mut request = sh(WORK).id("busy");
    request.limits.get_or_insert_default().cpu_millis = 500;
    worked(&daemon, request);
    daemon.api.started(sleeper("idle"));
    // The kernel counts a CPU period at its end. Before the end of the period, the shell may wait for CPU time to start
    // its last process.
    let both = wait::until("a CPU period is over, and the shell has started sleep", || {
        let both = stats_of(&daemon, &["idle", "busy"]);
        let used = both[0].usage?;
        (used.cpu?.periods > 0 && used.pids?.current == 2).then_some(both)
    });
    let [busy, idle] = &both[..] else { panic!("two containers") };
    assert_eq!((&*busy.id, &*idle.id, busy.state()), ("busy", "idle", State::Running));
    let (used, spared) = (busy.usage.unwrap(), idle.usage.unwrap());
    let (cpu, other) = (used.cpu.unwrap(), spared.cpu.unwrap());
    assert!(cpu.total_ns > other.total_ns && cpu.user_ns + cpu.system_ns > 0, "{cpu:?} {other:?}");
    assert!(cpu.periods > 0 && other.periods == 0, "CPU periods are counted only under a limit: {cpu:?} {other:?}");
    let (memory, other) = (used.memory.unwrap(), spared.memory.unwrap());
    assert!(memory.usage_bytes >= 8 << 20 && memory.cache_bytes >= 8 << 20, "{memory:?}");
    assert!(other.usage_bytes < 8 << 20 && memory.max_bytes >= Some(memory.usage_bytes), "{other:?}");
    assert_eq!(used.pids.unwrap().current, 2, "the shell and its sleep");
    assert_eq!((used.network, busy.limits.clone().unwrap().cpu_millis), (None, 500));
    // The final counters are not less than the counters of the running container.
    daemon.api.stop("busy", Some(0)).unwrap();
    let ended = daemon.api.wait("busy").unwrap();
    let end = ending(&ended).usage.unwrap();
    assert!(end.cpu.unwrap().total_ns >= cpu.total_ns && end.memory.unwrap().max_bytes >= memory.max_bytes, "{end:?}");
    assert_eq!(stats_of(&daemon, &["busy"])[0].usage, Some(end));
    // A container that never ran has no counters.
    let never = daemon.api.run_to_end(integration::request::program("/nope", &[]).id("never"));
    assert_eq!(ending(&never).usage, None);
}

/// Counters of all running containers can be requested, by labels and page by page.
#[test]
fn containers_are_chosen_by_ids_and_labels() {
    let daemon = Daemon::start();
    for id in ["a", "b", "c"] {
        daemon.api.started(sleeper(id).label("job", if id == "c" { "two" } else { "one" }));
    }
    daemon.api.stop("b", Some(0)).unwrap();
    daemon.api.wait("b").unwrap();
    let ids = |request| {
        let answer = stats(&daemon, request).unwrap();
        (answer.containers.into_iter().map(|one| one.id).collect::<Vec<_>>().concat(), answer.next_page_token)
    };
    assert_eq!(ids(StatsRequest::default()).0, "ac", "only running containers");
    let labels = HashMap::from([("job".to_owned(), "one".to_owned())]);
    assert_eq!(ids(StatsRequest { labels: labels.clone(), ..StatsRequest::default() }).0, "a");
    let named = ["c", "b", "b", "a"].map(str::to_owned).to_vec();
    assert_eq!(ids(StatsRequest { ids: named.clone(), ..StatsRequest::default() }).0, "abc", "containers in any state");
    let page = StatsRequest { ids: named, labels, page_size: 1, ..StatsRequest::default() };
    assert_eq!(ids(page.clone()), ("a".into(), "a".into()));
    assert_eq!(ids(StatsRequest { page_token: "a".into(), ..page }), ("b".into(), String::new()));
}

#[test]
fn invalid_requests_are_refused_by_field() {
    let daemon = Daemon::start();
    let ids: Vec<String> = (0..1001).map(|number| format!("c{number}")).collect();
    let bad = StatsRequest { ids: ids.clone(), page_size: 1001, page_token: "/".into(), ..StatsRequest::default() };
    let reported = stats(&daemon, bad).unwrap_err();
    assert_eq!(reported.code(), Code::InvalidArgument);
    for field in ["ids", "page_size", "page_token"] {
        assert!(reported.message().contains(field), "{reported}");
    }
    for seconds in [0, -1, 3601] {
        let interval = Some(prost_types::Duration { seconds, nanos: 0 });
        let reported =
            watch(&daemon, WatchStatsRequest { ids: ids.clone(), interval, ..Default::default() }).unwrap_err();
        assert!(reported.message().contains("ids") && reported.message().contains("interval"), "{reported}");
    }
    let missing = StatsRequest { ids: vec!["missing".into()], ..StatsRequest::default() };
    assert_eq!(stats(&daemon, missing).unwrap_err().code(), Code::NotFound);
}

/// A stream of named containers ends without an error, with their final counters, as soon as the last container has
/// exited.
#[test]
fn stream_ends_with_its_containers() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("c"));
    daemon.api.started(sleeper("other"));
    let interval = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
    let request = WatchStatsRequest { ids: vec!["c".into()], interval, ..WatchStatsRequest::default() };
    let mut stream = daemon.api.block_on(daemon.api.rpc().watch_stats(request)).unwrap().into_inner();
    let mut next = || daemon.api.block_on(stream.message()).unwrap();
    let first = next().unwrap();
    assert!(first.end_of_reading && first.containers.len() == 1 && first.containers[0].id == "c", "{first:?}");
    daemon.api.stop("c", Some(0)).unwrap();
    let last = next().unwrap();
    assert_eq!((last.containers[0].state(), next()), (State::Completed, None));
    assert_eq!(last.containers[0].usage, ending(&daemon.api.get("c").unwrap()).usage);
}

/// Counters continue across a restart of executord. If a shim was killed, the launcher reads the container's counters.
#[test]
fn counters_outlive_executord_and_the_shim() {
    let mut daemon = Daemon::start();
    worked(&daemon, sh(WORK).id("c"));
    let total = |usage: Option<executor_proto::v1::Usage>| usage.unwrap().cpu.unwrap().total_ns;
    let before = total(stats_of(&daemon, &["c"])[0].usage);
    daemon.kill();
    daemon.start_again();
    let after = wait::until("the shim is found again", || stats_of(&daemon, &["c"])[0].usage);
    assert!(total(Some(after)) >= before);
    kill(daemon.record("c").shim.pid, 9);
    let ended = daemon.api.wait("c").unwrap();
    let result = ended.result.unwrap();
    assert!(result.exit.is_none() && total(result.usage) >= before);
}

#[test]
fn stats_command_shows_counters() {
    let daemon = Daemon::start();
    worked(&daemon, sh(WORK).id("web-1"));
    let text = cli::run(&daemon.socket(), &["stats", "--no-stream", "web"]);
    let rows: Vec<Vec<&str>> = text.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((text.status, rows.len(), rows[1][0], rows[1][1]), (0, 2, "web-1", "running"), "{text:?}");
    let json = cli::run(&daemon.socket(), &["stats", "--no-stream", "--json"]).json();
    assert!(json[0]["usage"]["cpu"]["total_ns"].as_u64().unwrap() > 0, "{json}");
    daemon.api.stop("web-1", Some(0)).unwrap();
    daemon.api.wait("web-1").unwrap();
    let ended = cli::run(&daemon.socket(), &["stats", "--json", "web-1"]).json_lines();
    assert_eq!((ended.len(), &ended[0]["state"]), (1, &"completed".into()), "the stream has closed");
    let shown = cli::run(&daemon.socket(), &["inspect", "--json", "web-1"]).json();
    assert_eq!(shown["result"]["usage"], ended[0]["usage"]);
}
