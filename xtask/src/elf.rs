//! Checks by the ELF header that a binary is static, because tools for this check may not be installed.
//!
//! A static program has no PT_INTERP segment, because no dynamic loader runs before it. A static program also has no
//! DT_NEEDED entry, because it needs no library. (A static-pie has a PT_DYNAMIC segment for its own relocations.)

use std::path::Path;

use anyhow::{Context as _, ensure};

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;

/// Returns an error if `path` is not a static 64-bit little-endian ELF program.
pub(crate) fn require_static(path: &Path) -> anyhow::Result<()> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    check(&bytes).with_context(|| format!("{} is not static", path.display()))
}

fn check(elf: &[u8]) -> anyhow::Result<()> {
    ensure!(elf.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF file");
    let table = number::<8>(elf, 32)?;
    let (size, count) = (number::<2>(elf, 54)?, number::<2>(elf, 56)?);
    for index in 0..count {
        let header = usize::try_from(table + index * size)?;
        let (offset, length) = (number::<8>(elf, header + 8)?, number::<8>(elf, header + 32)?);
        match u32::try_from(number::<4>(elf, header)?)? {
            PT_INTERP => {
                let name = elf.get(usize::try_from(offset)?..usize::try_from(offset + length)?).unwrap_or_default();
                anyhow::bail!(
                    "the program needs the dynamic loader {}",
                    String::from_utf8_lossy(name).trim_end_matches('\0')
                );
            }
            PT_DYNAMIC => {
                for entry in (offset..offset + length).step_by(16) {
                    match number::<8>(elf, usize::try_from(entry)?)? {
                        DT_NULL => break,
                        DT_NEEDED => anyhow::bail!("the program requires a shared library"),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn number<const N: usize>(elf: &[u8], at: usize) -> anyhow::Result<u64> {
    let bytes = elf.get(at..at + N).context("the file is truncated")?;
    Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_program_differs_from_static() {
        let mut elf = vec![0; 64 + 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 1;
        elf[64] = 1; // PT_LOAD
        check(&elf).unwrap();
        elf[64] = 3; // PT_INTERP
        assert!(check(&elf).unwrap_err().to_string().contains("loader"));
    }

    #[test]
    fn this_test_is_dynamic() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(require_static(&own).is_err(), cfg!(not(target_feature = "crt-static")));
    }

    #[test]
    fn truncated_elf_file_is_refused() {
        assert!(check(b"\x7fELF\x02\x01").is_err());
    }
}
