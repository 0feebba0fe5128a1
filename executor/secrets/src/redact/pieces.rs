//! Collects the forms of all values, as pieces of one buffer that is wiped on drop, and limits their total size.

/// Maximum length of a piece in bytes.
pub(super) const FORM_MAX: usize = 256;
/// Length in bytes above which a form is cut. The difference to `FORM_MAX` is for base64 characters that may follow a
/// piece.
pub(super) const CUT: usize = 240;
/// Minimum length in bytes of a run of white space with which a piece may begin.
const SHIFT: usize = 8;
/// Maximum size of all masked values in bytes: the largest configurable volume of secret files.
pub(super) const VALUES_MAX: usize = 64 << 20;
/// Maximum memory for lines and encodings of the values, in bytes.
pub(super) const ENCODED_MAX: usize = 16 << 20;
/// Memory overhead of a piece in bytes, in addition to its content.
const PIECE_BYTES: usize = 40;

/// The size limit of forms is reached.
pub(super) struct BufferFull;

/// A form or a part of a form.
pub(super) struct FormPiece {
    pub(super) at: u32,
    pub(super) length: u16,
    /// 0 for a value itself, 1 for its lines and encodings. If pieces are equal, the lowest rank is kept.
    pub(super) rank: u8,
    pub(super) owner: u32,
}

/// The forms collected so far.
pub(super) struct Forms {
    /// Bytes of all forms, overwritten by [`crate::ZeroOnFree`] when they are freed.
    pub(super) bytes: Vec<u8>,
    pub(super) pieces: Vec<FormPiece>,
    /// Number of bytes that may still be added.
    pub(super) room: usize,
    pub(super) owner: u32,
    pub(super) rank: u8,
}

/// A saved state of [`Forms`] for rollback.
#[derive(Clone, Copy)]
pub(super) struct FormsCheckpoint {
    bytes: usize,
    pieces: usize,
    room: usize,
}

impl Forms {
    /// Creates an empty buffer for values of this many bytes in total.
    pub(super) fn new(values: usize) -> Self {
        let bytes = Vec::with_capacity(values.min(VALUES_MAX));
        Self { bytes, pieces: Vec::new(), room: VALUES_MAX, owner: 0, rank: 0 }
    }

    /// Adds a value itself, or its first part if the value does not fit. Returns the number of bytes added.
    pub(super) fn value(&mut self, owner: u32, value: &[u8]) -> usize {
        let taken = value.len().min(self.room);
        if taken < value.len().min(FORM_MAX) {
            return 0;
        }
        self.room -= taken;
        (self.owner, self.rank) = (owner, 0);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&value[..taken]);
        self.cut(start, self.bytes.len());
        taken
    }

    /// Resets the remaining space to the limit for lines and encodings. Call this after all values are added.
    pub(super) fn start_encodings(&mut self) {
        self.room = ENCODED_MAX;
    }

    /// Appends bytes to the form that is being written.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), BufferFull> {
        self.room = self.room.checked_sub(bytes.len()).ok_or(BufferFull)?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    pub(super) fn charged_cut(&mut self, from: usize, to: usize) -> Result<(), BufferFull> {
        self.charge((to - from).div_ceil(CUT))?;
        self.cut(from, to);
        Ok(())
    }

    pub(super) fn charge(&mut self, pieces: usize) -> Result<(), BufferFull> {
        self.room = self.room.checked_sub(pieces * PIECE_BYTES).ok_or(BufferFull)?;
        Ok(())
    }

    /// Cuts written bytes into the fewest pieces of about equal length and adds them. Returns the start of the last
    /// piece.
    ///
    /// No piece after the first begins with a run of white space of less than [`SHIFT`] bytes. Output usually ends in a
    /// newline, which would otherwise be held back each time as the possible start of a piece.
    pub(super) fn cut(&mut self, from: usize, to: usize) -> usize {
        let (length, count) = (to - from, (to - from).div_ceil(CUT).max(1));
        let mut begin = from;
        for index in 1..count {
            let even = from + length * index / count;
            let blank = self.bytes[even..to].iter().take(SHIFT).take_while(|byte| byte.is_ascii_whitespace()).count();
            let end = if blank < SHIFT { even + blank } else { even };
            self.piece(begin, end);
            begin = end;
        }
        self.piece(begin, to);
        begin
    }

    pub(super) fn piece(&mut self, from: usize, to: usize) {
        let at = u32::try_from(from).expect("at most VALUES_MAX and ENCODED_MAX together");
        let length = u16::try_from(to - from).expect("at most FORM_MAX");
        self.pieces.push(FormPiece { at, length, rank: self.rank, owner: self.owner });
    }

    pub(super) fn all_or_none(
        &mut self,
        add: impl FnOnce(&mut Self) -> Result<(), BufferFull>,
    ) -> Result<(), BufferFull> {
        let checkpoint = self.checkpoint();
        let outcome = add(self);
        if outcome.is_err() {
            self.roll_back(checkpoint);
        }
        outcome
    }

    pub(super) fn checkpoint(&self) -> FormsCheckpoint {
        FormsCheckpoint { bytes: self.bytes.len(), pieces: self.pieces.len(), room: self.room }
    }

    pub(super) fn roll_back(&mut self, checkpoint: FormsCheckpoint) {
        self.bytes[checkpoint.bytes..].fill(0);
        self.bytes.truncate(checkpoint.bytes);
        self.pieces.truncate(checkpoint.pieces);
        self.room = checkpoint.room;
    }
}
