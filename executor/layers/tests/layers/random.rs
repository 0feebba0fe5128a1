//! Unpacks random archives that consist of names and types which attacks use. Nothing outside of the trees changes, and
//! the store contains only complete layers.

use tar::EntryType;

use crate::harness::{Layer, Sandbox, diff_id};

/// A deterministic random number generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

fn archive(random: &mut Random, outside: &str) -> Vec<u8> {
    let tame = ["a", "b", "a/b", "b/a", "a/b/a", "/a", "a/file", "b/file", "a/.wh.b", ".wh.a", "a/.wh..wh..opq"];
    let wild = ["..", "a/../..", ".", "/", "b/.wh..", ".wh...", "../outside", "../../../outside/file", outside];
    let kinds = [EntryType::Regular, EntryType::Directory, EntryType::Symlink, EntryType::Link, EntryType::Fifo];
    let mut layer = Layer::new();
    for _ in 0..=random.below(12) {
        let kind = kinds[random.below(kinds.len())];
        let path = if random.below(24) == 0 { random.one(&wild) } else { random.one(&tame) };
        let link = if kind == EntryType::Symlink { random.one(&wild) } else { random.one(&tame) };
        let content: &[u8] = if kind == EntryType::Regular { b"written" } else { b"" };
        if random.below(8) == 0 {
            layer = layer.records(&[("SCHILY.xattr.user.x", b"1")]);
        }
        layer = layer.raw(kind, path, link, 0o755, content);
    }
    layer.bytes()
}

#[test]
fn nothing_outside_changes_whatever_is_unpacked() {
    let sandbox = Sandbox::new();
    let before = sandbox.list_outside();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let (mut unpacked, mut refused) = (0, 0);
    for _ in 0..300 {
        let mut layers = Vec::new();
        for _ in 0..=random.below(3) {
            let archive = archive(&mut random, &sandbox.outside());
            match sandbox.unpack(&layers, &archive) {
                Ok(layer) => {
                    assert!(sandbox.store.has(&diff_id(&archive), &layers));
                    layers.push(layer);
                    unpacked += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(sandbox.store.left_over().unwrap().is_empty());
        sandbox.merged(&layers);
    }
    assert_eq!(sandbox.list_outside(), before);
    assert!(unpacked > 100 && refused > 100, "{unpacked} unpacked, {refused} refused");
}
