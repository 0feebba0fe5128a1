//! Creates random trees, as requests and in the representation that the evaluation uses.

use executor_proto::v1::{
    Action, CodependentAction, EmitProgressAction, File, ParallelAction, RunAction, RunRequest, SerialAction, Sidecar,
    TimeoutAction, TryAction,
};
use integration::request::RequestBuilder as _;

/// Directory of secret files with relative paths.
const FILES: &str = "/etc/cf-service-bindings";
/// Maximum number of actions of a container's trees, after which only processes are added.
const ACTIONS_MAX: u64 = 60;
/// Maximum depth of a tree.
const DEPTH_MAX: u32 = 7;

/// Pseudo-random number generator (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit
    }
}

/// An action, by its kind.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Run(Leaf),
    Serial(Vec<Node>),
    Parallel(Vec<Node>),
    /// Codependent actions: when one of them exits, the others are cancelled. If `fails_on_exit` is true, an action
    /// that succeeds also counts as failed.
    Codependent {
        fails_on_exit: bool,
        parts: Vec<Node>,
    },
    Try(Box<Node>),
    Timeout(i64, Box<Node>),
    Progress(Box<Node>),
}

/// A process.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) number: usize,
    pub(crate) end: LeafEnd,
    /// True if the process has a secret file.
    pub(crate) file: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafEnd {
    /// Exits with this status after this number of milliseconds.
    Exits(u64, i32),
    /// Exits on SIGTERM.
    Hangs,
    /// Ignores SIGTERM and exits only on SIGKILL.
    Resists,
}

/// The trees that a container runs.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) setup: Option<Node>,
    pub(crate) action: Node,
    pub(crate) sidecars: Vec<Node>,
    /// Number of milliseconds until a call stops the container.
    pub(crate) stopped_after: Option<u64>,
}

/// The trees of a container under construction. Each new action decrements `left`; at 0, only processes are added.
struct Growing<'a> {
    random: &'a mut Random,
    left: u64,
    leaves: usize,
}

impl Tree {
    /// Creates a random tree.
    pub(crate) fn grow(random: &mut Random) -> Self {
        let stopped_after = (random.below(4) == 0).then(|| random.below(400));
        let ended = stopped_after.is_some();
        let left = 1 + random.below(ACTIONS_MAX);
        let (sets_up, has_sidecars) = (random.below(4) == 0, random.below(4) == 0);
        let mut growing = Growing { random, left, leaves: 0 };
        let setup = sets_up.then(|| growing.node(DEPTH_MAX - 2, ended));
        let action = growing.node(0, ended);
        // The main action exits, and then the sidecars are stopped.
        let sidecars =
            if has_sidecars { (0..2).map(|_| growing.node(DEPTH_MAX - 2, true)).collect() } else { Vec::new() };
        // A single run action is not a tree.
        let action = if let Node::Run(_) = action { Node::Progress(Box::new(action)) } else { action };
        Self { setup, action, sidecars, stopped_after }
    }

    /// Returns the request for a container that runs the trees.
    pub(crate) fn request(&self, id: &str) -> RunRequest {
        let sidecars = self.sidecars.iter().map(|node| Sidecar { action: Some(node.action()), ..Sidecar::default() });
        let mut request = RunRequest {
            setup: self.setup.as_ref().map(Node::action),
            action: Some(self.action.action()),
            sidecars: sidecars.collect(),
            ..RunRequest::default()
        };
        request.grace_period = Some(prost_types::Duration { seconds: 0, nanos: 200_000_000 });
        request.id(id).memory(64 << 20)
    }
}

impl Growing<'_> {
    /// Grows a node. `ended` is true if another action or a call cancels the node, so it need not exit on its own.
    fn node(&mut self, depth: u32, ended: bool) -> Node {
        self.left = self.left.saturating_sub(1);
        let kind = if self.left == 0 || depth == DEPTH_MAX { 0 } else { self.random.below(9) };
        match kind {
            3 => Node::Serial(self.nodes(depth, |_| ended)),
            4 => Node::Parallel(self.nodes(depth, |_| ended)),
            // The first part exits, and then the other parts are stopped.
            5 => Node::Codependent { fails_on_exit: true, parts: self.nodes(depth, |index| ended || index > 0) },
            6 => Node::Try(Box::new(self.node(depth + 1, ended))),
            7 if self.random.below(3) == 0 => Node::Timeout(60_000, Box::new(self.node(depth + 1, ended))),
            7 => {
                let after = 1 + i64::try_from(self.random.below(300)).unwrap();
                Node::Timeout(after, Box::new(self.node(depth + 1, true)))
            }
            8 => Node::Progress(Box::new(self.node(depth + 1, ended))),
            _ => {
                self.leaves += 1;
                let code =
                    if self.random.below(3) == 0 { 1 + i32::try_from(self.random.below(90)).unwrap() } else { 0 };
                let end = match self.random.below(6) {
                    0 if ended => LeafEnd::Resists,
                    1 if ended => LeafEnd::Hangs,
                    2 | 3 => LeafEnd::Exits(self.random.below(300), code),
                    _ => LeafEnd::Exits(0, code),
                };
                Node::Run(Leaf { number: self.leaves, end, file: self.random.below(4) == 0 })
            }
        }
    }

    fn nodes(&mut self, depth: u32, ended: impl Fn(u64) -> bool) -> Vec<Node> {
        let count = 1 + self.random.below(4);
        (0..count).map(|index| self.node(depth + 1, ended(index))).collect()
    }
}

impl Leaf {
    fn run(&self) -> RunAction {
        let number = self.number;
        let mut script = format!("echo ran {number};");
        let mut volume_mounted_files = Vec::new();
        if self.file {
            let path = format!("step-{number}");
            let content = format!("a secret of step {number}");
            script += &format!(r#" [ "$(cat {FILES}/{path})" = "{content}" ] || exit 99;"#);
            volume_mounted_files.push(File { path, content: content.into_bytes(), ..File::default() });
        }
        script += &match self.end {
            LeafEnd::Exits(0, code) => format!(" exit {code}"),
            LeafEnd::Exits(millis, code) => format!(" sleep 0.{millis:03}; exit {code}"),
            LeafEnd::Hangs => " exec sleep 600".to_owned(),
            LeafEnd::Resists => " trap '' TERM; exec sleep 600".to_owned(),
        };
        let args = vec!["-c".into(), script];
        RunAction { path: "/bin/sh".into(), args, volume_mounted_files, ..RunAction::default() }
    }
}

impl Node {
    fn action(&self) -> Action {
        let all = |nodes: &[Node]| nodes.iter().map(Node::action).collect();
        let boxed = |node: &Node| Some(Box::new(node.action()));
        match self {
            Self::Run(leaf) => Action { run: Some(leaf.run()), ..Action::default() },
            Self::Serial(nodes) => {
                let serial = SerialAction { actions: all(nodes), ..SerialAction::default() };
                Action { serial: Some(serial), ..Action::default() }
            }
            Self::Parallel(nodes) => {
                let parallel = ParallelAction { actions: all(nodes), ..ParallelAction::default() };
                Action { parallel: Some(parallel), ..Action::default() }
            }
            Self::Codependent { parts, .. } => {
                let codependent = CodependentAction { actions: all(parts), ..CodependentAction::default() };
                Action { codependent: Some(codependent), ..Action::default() }
            }
            Self::Try(node) => {
                let attempt = TryAction { action: boxed(node), ..TryAction::default() };
                Action { r#try: Some(Box::new(attempt)), ..Action::default() }
            }
            Self::Timeout(timeout_ms, node) => {
                let timeout =
                    TimeoutAction { action: boxed(node), timeout_ms: *timeout_ms, ..TimeoutAction::default() };
                Action { timeout: Some(Box::new(timeout)), ..Action::default() }
            }
            Self::Progress(node) => {
                let progress = EmitProgressAction { action: boxed(node), ..EmitProgressAction::default() };
                Action { emit_progress: Some(Box::new(progress)), ..Action::default() }
            }
        }
    }
}
