//! Parses and checks the lists of data regions of sparse files.

use crate::header::{BLOCK, Header, number};
use crate::pax::decimal;
use crate::{Limits, TarError};

/// A region of a sparse file whose data is in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Offset in the file, in bytes.
    pub(crate) at: u64,
    /// Length in bytes.
    pub(crate) length: u64,
}

/// Size of a data region's description in GNU's list, in bytes: two numbers of twelve bytes.
const GNU_PIECE: usize = 24;
/// Error text for an invalid list of data regions in pax records or content.
pub(crate) const INVALID_MAP: &str = "an invalid map of a sparse file";
/// Maximum length of a line in a list of data regions that is stored in the content, in bytes.
const LINE_MAX: usize = 21;

/// Checks that the pieces are in order, do not overlap, end within the file, and together have the stored length.
pub(crate) fn check(pieces: &[Piece], stored: u64, size: u64, path: &[u8]) -> Result<(), TarError> {
    let mut end = 0;
    let mut sum = 0_u64;
    for piece in pieces {
        let after = piece.at.checked_add(piece.length).filter(|after| *after <= size && piece.at >= end);
        end = after
            .ok_or_else(|| TarError::damaged(path, "the data regions of the sparse file overlap or exceed its size"))?;
        sum = sum.saturating_add(piece.length);
    }
    if sum == stored {
        Ok(())
    } else {
        Err(TarError::damaged(path, "the lengths of the sparse file's data regions do not add up to the stored size"))
    }
}

pub(crate) fn from_pairs(numbers: &[u64], path: &[u8], limits: &Limits) -> Result<Vec<Piece>, TarError> {
    if !numbers.len().is_multiple_of(2) {
        return Err(TarError::damaged(path, INVALID_MAP));
    }
    limit(numbers.len() / 2, path, limits)?;
    Ok(numbers.chunks_exact(2).map(|pair| Piece { at: pair[0], length: pair[1] }).collect())
}

fn limit(pieces: usize, path: &[u8], limits: &Limits) -> Result<(), TarError> {
    if pieces as u64 > limits.pieces {
        return Err(TarError::limit(path, "data regions of a sparse file", pieces as u64, limits.pieces));
    }
    Ok(())
}

/// Reads GNU's own format: some pieces in the header, more in the extension blocks after it. `next_block` returns the
/// extension blocks.
pub(crate) fn from_gnu(
    header: &Header<'_>,
    path: &[u8],
    limits: &Limits,
    mut next_block: impl FnMut() -> Result<[u8; BLOCK], TarError>,
) -> Result<(u64, Vec<Piece>), TarError> {
    let damaged = || TarError::damaged(path, "an invalid list of data regions of a sparse file");
    let mut pieces = Vec::new();
    let mut take = |list: &[u8]| {
        for pair in list.chunks_exact(GNU_PIECE) {
            if pair[0] == 0 || pair[12] == 0 {
                break;
            }
            let one = |field| number(field).and_then(|number| u64::try_from(number).ok()).ok_or_else(damaged);
            pieces.push(Piece { at: one(&pair[..12])?, length: one(&pair[12..])? });
        }
        limit(pieces.len(), path, limits)
    };
    let (list, mut more) = header.gnu_pieces();
    take(list)?;
    while more {
        let block = next_block()?;
        take(&block[..21 * GNU_PIECE])?;
        more = block[504] != 0;
    }
    Ok((header.gnu_size()?, pieces))
}

/// Reads pax's format 1.0: a count, then one line per number, in whole blocks of the content. `next_block` returns
/// these blocks.
pub(crate) fn from_content(
    path: &[u8],
    limits: &Limits,
    mut next_block: impl FnMut() -> Result<[u8; BLOCK], TarError>,
) -> Result<Vec<Piece>, TarError> {
    let damaged = || TarError::damaged(path, INVALID_MAP);
    let (mut numbers, mut line, mut wanted) = (Vec::new(), Vec::new(), None);
    while wanted != Some(numbers.len()) {
        for byte in next_block()? {
            if wanted == Some(numbers.len()) {
                break;
            }
            if byte != b'\n' {
                line.push(byte);
                if line.len() > LINE_MAX {
                    return Err(damaged());
                }
                continue;
            }
            let number = decimal(&line).ok_or_else(damaged)?;
            line.clear();
            if wanted.is_none() {
                let pieces = usize::try_from(number).ok().and_then(|pieces| pieces.checked_mul(2));
                let pieces = pieces.ok_or_else(damaged)?;
                limit(pieces / 2, path, limits)?;
                wanted = Some(pieces);
            } else {
                numbers.push(number);
            }
        }
    }
    from_pairs(&numbers, path, limits)
}
