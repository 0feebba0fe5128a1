use super::*;

fn table(lines: &[&str]) -> Vec<Mount> {
    mountinfo::parse(lines.join("\n").as_bytes())
}

const MEMORY: &str = "30 25 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory";
const CPU: &str = "31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
const BLKIO: &str = "32 25 0:28 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio";
const SYSTEMD: &str = "33 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd";
const UNIFIED: &str = "34 25 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate";
const V2: &str = "35 24 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
const ELSEWHERE: &str = "36 24 0:32 / /mnt/memory rw - cgroup cgroup rw,memory";
const TMPFS: &str = "25 24 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755";

#[test]
fn hierarchies_are_found_among_the_mounts() {
    let v2 = || Some(MountedHierarchies::V2 { mount: ROOT.into() });
    let v1 = |hybrid, used: &[&str], unused: &[&str]| {
        Some(MountedHierarchies::V1 { hybrid, used: table(used), unused: table(unused) })
    };
    let cases: [(&[&str], Option<MountedHierarchies>); 6] = [
        (&[V2], v2()),
        (&[V2, ELSEWHERE], v2()),
        (&[TMPFS, MEMORY, CPU], v1(false, &[MEMORY, CPU], &[])),
        (&[MEMORY, CPU, BLKIO, SYSTEMD, UNIFIED], v1(true, &[MEMORY, CPU], &[BLKIO, SYSTEMD, UNIFIED])),
        (&[TMPFS, CPU, ELSEWHERE], None),
        (&[], None),
    ];
    for (lines, expected) in cases {
        assert_eq!(Hierarchies::among(&table(lines)), expected, "{lines:#?}");
    }
}

#[test]
fn memory_room_includes_file_cache() {
    let dir = tempfile::tempdir().unwrap();
    let v2 = Hierarchies::V2 { mount: dir.path().into() };
    let v1 = Hierarchies::at(&[dir.path().into()]);
    let write = |name: &str, text: &str| {
        fs::create_dir_all(dir.path().join("c")).unwrap();
        fs::write(dir.path().join("c").join(name), text).unwrap();
    };
    let room = |hierarchies: &Hierarchies| hierarchies.memory_room(Path::new("c"));
    assert_eq!((room(&v1), room(&v2)), (None, None), "no such cgroup");
    write("memory.max", "1000\n");
    write("memory.current", "900\n");
    write("memory.limit_in_bytes", "2000\n");
    write("memory.usage_in_bytes", "1900\n");
    write(
        "memory.stat",
        "anon 5\nfile 90\ninactive_file 50\nactive_file 30\ntotal_inactive_file 500\ntotal_active_file x\n",
    );
    assert_eq!((room(&v1), room(&v2)), (Some(600), Some(180)));
    write("memory.max", "max\n");
    assert_eq!(room(&v2), None, "no limit");
    write("memory.current", "nonsense");
    assert_eq!(room(&v2), None);
}

#[test]
fn swap_limit_is_written_if_supported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memory.swap.max");
    let v2 = Hierarchies::V2 { mount: dir.path().into() };
    for (bytes, written) in [(None, "0"), (Some(0), "0"), (Some(4096), "4096"), (Some(-1), "max")] {
        v2.limit_swap(Path::new(""), bytes).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), written);
    }
}

#[test]
fn child_cgroups_have_own_limits() {
    let dir = tempfile::tempdir().unwrap();
    let of = |mount: &str| dir.path().join(mount);
    let v1 = Hierarchies::at(&[of("memory"), of("pids")]);
    let v2 = Hierarchies::V2 { mount: of("v2") };
    let write = |file: &str, text: &str| fs::write(of(file), text).unwrap();
    let read = |file: &str| fs::read_to_string(of(file)).unwrap();
    ["memory/c", "pids/c", "v2/c"].into_iter().for_each(|cgroup| fs::create_dir_all(of(cgroup)).unwrap());
    write("v2/c/cgroup.procs", "7\n");
    let limits = BTreeMap::from([(1, SidecarLimits { memory_bytes: 64, pids: 3 })]);
    let container = Path::new("c");
    v1.make_parts(container, &limits).unwrap();
    v2.make_parts(container, &limits).unwrap();
    v2.make_parts(container, &BTreeMap::new()).unwrap();
    assert_eq!(read("memory/c/sidecar-1/memory.limit_in_bytes") + &read("pids/c/sidecar-1/pids.max"), "643");
    assert_eq!(read("v2/c/sidecar-1/memory.max") + &read("v2/c/sidecar-1/pids.max"), "643");
    assert_eq!(read("v2/c/sidecar-1/memory.swap.max"), "0");
    assert_eq!(read("v2/c/rest/cgroup.procs") + &read("v2/c/cgroup.subtree_control"), "7+memory +pids");
    // Processes are found in all children. OOM kills are counted with or without children.
    write("v2/c/cgroup.procs", "");
    write("v2/c/sidecar-1/cgroup.procs", "9\n");
    let mut pids = v2.pids(container);
    pids.sort_unstable();
    assert_eq!(pids, [7, 9]);
    write("v2/c/memory.events", "oom_kill 5\n");
    write("v2/c/rest/memory.events", "oom_kill 2\n");
    write("memory/c/memory.oom_control", "oom_kill 2\n");
    write("memory/c/sidecar-1/memory.oom_control", "oom_kill 3\n");
    for hierarchies in [&v1, &v2] {
        assert_eq!((hierarchies.oom_kills(container), hierarchies.own_oom_kills(container)), (5, 2));
    }
    // On version 2, a process that joins a container's cgroup is moved into the child `rest`.
    v1.join_memory(container).unwrap();
    v2.join_memory(container).unwrap();
    assert_eq!(read("memory/c/tasks"), "0");
    assert_eq!((read("v2/c/rest/cgroup.procs"), read("v2/c/cgroup.procs")), ("0".into(), String::new()));
}

#[test]
fn cgroup_files_are_parsed() {
    let dir = tempfile::tempdir().unwrap();
    let v2 = Hierarchies::V2 { mount: dir.path().into() };
    let (kills, pids) = (|| v2.oom_kills(Path::new("")), || v2.pids(Path::new("")));
    assert_eq!((kills(), pids()), (0, vec![]));
    fs::write(dir.path().join("memory.events"), "low 0\noom 7\noom_kill 3\noom_group_kill 1\n").unwrap();
    fs::write(dir.path().join("cgroup.procs"), "1\n23\nx\n").unwrap();
    fs::write(dir.path().join("cgroup.controllers"), "cpu io memory\n").unwrap();
    assert_eq!((kills(), pids(), v2.controllers().len()), (3, vec![1, 23], 3));
    for (meminfo, none) in [("SwapTotal:       0 kB\n", true), ("SwapTotal:  8388604 kB\n", false), ("", false)] {
        assert_eq!(has_no_swap(meminfo), none, "{meminfo}");
    }
}
