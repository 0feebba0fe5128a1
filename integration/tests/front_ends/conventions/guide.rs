//! Runs the commands of docs/guides/conventions.md.

use integration::guide::{Guide, GuideShell};

use integration::conventions::World;

#[test]
fn guide_works_as_it_says() {
    let world = World::start();
    let guide = Guide::read("docs/guides/conventions.md");
    assert!(guide.commands() > 4, "the guide has too few commands");
    let env = vec![
        ("PORT", world.port.to_string().into()),
        ("REGISTRY_PORT", world.registry_port().to_string().into()),
        ("EXECUTOR_CONVENTIONS", world.dir.path().join("conventions.toml").into()),
    ];
    guide.run(&GuideShell { dir: world.dir.path().into(), env });
}
