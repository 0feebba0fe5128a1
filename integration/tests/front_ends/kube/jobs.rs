//! Jobs run to completion: rule P62 of docs/guides/kube-rules.md.

use crate::kube::world::KubeFixture;

fn job(script: &str, spec: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: work}}\nspec:\n  {spec}\n  template:\n    spec:\n      restartPolicy: Never\n      containers:\n      - name: main\n        image: example.com/box:1\n        command: [sh, -c, '{script}']\n"
    )
}

#[test]
fn indexed_and_failing_jobs_complete() {
    let world = KubeFixture::new();
    let path = world.write(
        "work.yaml",
        &job("echo number $JOB_COMPLETION_INDEX", "completions: 3\n  parallelism: 2\n  completionMode: Indexed"),
    );
    let ran = world.play_ok(&path);
    assert_eq!(ran.stderr.matches(": completed").count(), 3, "{ran:?}");
    assert_eq!(world.daemon.api.output("default_work-2_main").text(), "number 2\n");
    let ps = world.reported(&["ps"]);
    assert!(ps.as_array().unwrap().iter().all(|pod| pod["phase"] == "Succeeded"), "{ps}");
    // Completed jobs are not run again.
    assert!(world.play_ok(&path).stderr.contains("nothing has changed"));
    assert_eq!(world.kube(&["down", "work"]).status, 0);

    let path = world.write("work.yaml", &job("exit 3", "backoffLimit: 0"));
    let ran = world.play(&["play", &path]);
    assert!(
        ran.status == 125 && ran.stderr.contains("Job work failed: BackoffLimitExceeded: main: Error (exit status 3)"),
        "{ran:?}"
    );
    assert_eq!(world.kube(&["down", "work"]).status, 0);
    assert_eq!(world.containers().len(), 0);
}

/// The deadline of a job applies while a failed pod waits for its retry, too. If a job fails, its other pods are stopped.
#[test]
fn failed_job_stops_its_pods() {
    let world = KubeFixture::new();
    let script = r#"[ $JOB_COMPLETION_INDEX = 1 ] || exit 3; trap "exit 4" TERM; while :; do sleep 0.1; done"#;
    for (limit, reason) in [
        ("backoffLimit: 0", "BackoffLimitExceeded: main: Error (exit status 3)"),
        ("activeDeadlineSeconds: 2", "DeadlineExceeded: the job took longer than 2 s"),
    ] {
        let spec = format!("completions: 2\n  parallelism: 2\n  completionMode: Indexed\n  {limit}");
        let ran = world.play(&["play", &world.write("work.yaml", &job(script, &spec))]);
        assert!(ran.status == 125 && ran.stderr.contains(&format!("Job work failed: {reason}")), "{ran:?}");
        assert_eq!(ran.stderr.contains("retry in 10 s"), limit != "backoffLimit: 0", "{ran:?}");
        let ps = world.reported(&["ps"]);
        assert!(ps.as_array().unwrap().iter().all(|pod| pod["phase"] == "Failed"), "{ps}");
        assert_eq!(world.kube(&["down", "work"]).status, 0);
    }
}
