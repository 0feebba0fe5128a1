//! Random trees of actions run in real containers while executord and the launcher are killed and restarted. The
//! results are compared with an interpreter of the rules. EXECUTOR_TREES sets the number of trees, EXECUTOR_TREES_SEED
//! repeats a run.

mod evaluate;
mod grow;

use std::time::{Duration, SystemTime};

use executor_proto::v1::{State, Step, step};
use integration::supervised::{Part, Supervised};
use integration::wait;

use crate::random_trees::evaluate::Evaluator;
use crate::random_trees::grow::{Random, Tree};

/// Number of concurrent trees.
const AT_ONCE: usize = 6;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn random_trees_follow_rules_under_kills() {
    let count = number("EXECUTOR_TREES").unwrap_or(48) as usize;
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = number("EXECUTOR_TREES_SEED").unwrap_or_else(now) | 1;
    eprintln!("to repeat these trees, set EXECUTOR_TREES_SEED={seed}");
    let mut random = Random(seed);
    let mut node = Supervised::start();
    let before = node.footprint();
    let (mut done, mut failed, mut cancelled) = (0, 0, 0);
    while done < count {
        let trees: Vec<_> =
            (done..count.min(done + AT_ONCE)).map(|index| (format!("tree-{index}"), Tree::grow(&mut random))).collect();
        for (id, tree) in &trees {
            node.api.run(tree.request(id)).unwrap_or_else(|status| panic!("{id}: {status}: {tree:#?}"));
        }
        let killed = random.below(4);
        if killed != 0 {
            std::thread::sleep(Duration::from_millis(random.below(300))); // part of the input: the time of the kills
            for (bit, part) in [(1, Part::Executord), (2, Part::Launcher)] {
                if killed & bit != 0 {
                    node.kill(part);
                }
            }
            node.revive().unwrap();
        }
        for (id, after) in trees.iter().filter_map(|(id, tree)| Some((id, tree.stopped_after?))) {
            std::thread::sleep(Duration::from_millis(after)); // part of the input: the time of the stop
            node.api.stop(id, None).unwrap();
        }
        for (id, tree) in &trees {
            let ended = wait::within(wait::DEFAULT_TIMEOUT, || {
                let container = node.api.get(id).unwrap();
                if container.state() == State::Completed { Ok(container) } else { Err(Box::new(container)) }
            });
            let container = ended.unwrap_or_else(|it| panic!("{id}, seed {seed} did not complete\n{tree:#?}\n{it:#?}"));
            let output = node.api.output(id).text();
            Evaluator::new(&container, &output)
                .evaluate(tree, &container)
                .unwrap_or_else(|why| panic!("{id}, seed {seed}: {why}\n{tree:#?}\n{container:#?}\n{output}"));
            let states = || container.steps.iter().map(Step::state);
            failed += usize::from(states().any(|state| state == step::State::Failed));
            cancelled += usize::from(states().any(|state| state == step::State::Cancelled));
            node.api.delete(id, false).unwrap();
        }
        done += trees.len();
    }
    node.wait_until_back_at(&before, wait::DEFAULT_TIMEOUT).unwrap();
    assert!(
        failed > count / 10 && cancelled > count / 20,
        "control failed: only {failed} failed and {cancelled} were cancelled"
    );
}
