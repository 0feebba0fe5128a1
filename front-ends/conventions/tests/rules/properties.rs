//! Tests rule 12 of `docs/guides/conventions.md` with random conventions and templates: decoration is deterministic,
//! idempotent, convergent and conservative.

use serde_json::{Value, json};

use crate::common::{World, app};

/// Generator of reproducible random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).unwrap()
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const PRIORITIES: [&str; 3] = ["Early", "Normal", "Late"];

fn template(random: &mut Random) -> Value {
    let mut template = app();
    for name in NAMES.iter().take(random.below(5)) {
        template["metadata"]["labels"][*name] = json!(random.pick(&NAMES));
    }
    let containers: Vec<Value> = (0..1 + random.below(3))
        .map(|at| json!({"name": format!("c{at}"), "image": random.pick(&NAMES), "args": [random.pick(&NAMES)]}))
        .collect();
    template["spec"]["containers"] = containers.into();
    template["metadata"]["annotations"] = json!({"untouched": random.pick(&NAMES)});
    template
}

/// Returns a typical convention, which sets fields that are unset.
fn convention(random: &mut Random, name: &'static str) -> (String, impl Fn(&mut Value, &Value) -> Vec<String> + use<>) {
    let (what, value) = (random.below(4), random.pick(&NAMES).to_owned());
    let key = random.pick(&NAMES).to_owned();
    let server = move |template: &mut Value, _: &Value| {
        let place = match what {
            0 => &mut template["metadata"]["labels"],
            1 => &mut template["metadata"]["annotations"],
            2 => &mut template["spec"]["nodeSelector"],
            _ => &mut template["spec"]["containers"][0]["resources"]["limits"],
        };
        if place.get(&key).is_some() {
            return Vec::new();
        }
        place[&key] = json!(value);
        vec![format!("set-{key}")]
    };
    let selector = match random.below(3) {
        0 => String::new(),
        1 => "selectors = [{ matchLabels = { app = \"web\" } }]".to_owned(),
        _ => format!("selectors = [{{ matchExpressions = [{{ key = {name:?}, operator = \"Exists\" }}] }}]"),
    };
    (format!("priority = {:?}\n{selector}", random.pick(&PRIORITIES)), server)
}

/// Returns random conventions, registered in one of two orders.
fn world(seed: u64, backwards: bool) -> World {
    let mut random = Random(seed);
    let count = random.below(NAMES.len() + 1);
    let mut made: Vec<_> = NAMES[..count].iter().map(|name| (*name, convention(&mut random, name))).collect();
    if backwards {
        made.reverse();
    }
    made.into_iter().fold(World::default(), |world, (name, (more, server))| world.convention(name, &more, server))
}

#[tokio::test]
async fn rule_12_deterministic_idempotent_convergent_conservative() {
    let mut decorated_some = false;
    for seed in 1..200 {
        let before = template(&mut Random(seed * 7919));
        let first = world(seed, false);
        // Convergent: decoration finishes within the maximum number of rounds.
        let once = first.document(&before).await;
        // Deterministic: the order of registrations in the file does not matter.
        let second = world(seed, true);
        assert_eq!(second.document(&before).await, once, "seed {seed}");
        assert_eq!(second.requests(), first.requests(), "seed {seed}");
        // Idempotent: decorating again changes nothing.
        let third = world(seed, false);
        assert_eq!(third.document(&once).await, once, "seed {seed}");
        assert!(third.decorate(&once).await.unwrap().steps.iter().all(|step| step.changes.is_empty()), "seed {seed}");
        // Conservative: fields that no convention set are unchanged, except for image digests.
        assert_eq!(once["metadata"]["annotations"]["untouched"], before["metadata"]["annotations"]["untouched"]);
        let containers = |template: &Value| template["spec"]["containers"].as_array().unwrap().clone();
        for (old, new) in containers(&before).iter().zip(&containers(&once)) {
            assert_eq!((&old["name"], &old["args"]), (&new["name"], &new["args"]));
            let (old, new) = (old["image"].as_str().unwrap(), new["image"].as_str().unwrap());
            assert!(new == old || new.starts_with(&format!("r.example/{old}:latest@sha256:")), "{old} {new}");
        }
        if first.requests().is_empty() {
            assert_eq!(once, before, "seed {seed}");
        }
        decorated_some |= first.requests().len() > 4;
    }
    assert!(decorated_some);
}
