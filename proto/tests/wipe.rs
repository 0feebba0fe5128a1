//! Test of the wipe of file contents, which looks at memory that a vector no longer shows.

#![allow(unsafe_code)]

/// Returns the bytes of a vector's whole memory.
fn memory(bytes: &mut Vec<u8>) -> Vec<u8> {
    let spare = bytes.spare_capacity_mut().iter();
    // SAFETY: the tests have written to all of the capacity before.
    let spare: Vec<u8> = spare.map(|byte| unsafe { byte.assume_init() }).collect();
    [&bytes[..], &spare].concat()
}

#[test]
fn a_wipe_covers_the_spare_capacity() {
    let mut bytes = vec![0; 64];
    bytes[..20].copy_from_slice(b"a secret of 20 bytes");
    bytes.truncate(8);
    assert!(memory(&mut bytes).starts_with(b"a secret of 20 bytes"), "control failed: the text is not in the memory");
    let (start, capacity) = (bytes.as_ptr(), bytes.capacity());
    executor_proto::wipe(&mut bytes);
    assert!(bytes.is_empty());
    assert_eq!((bytes.as_ptr(), bytes.capacity()), (start, capacity), "the memory is the same");
    assert_eq!(memory(&mut bytes), vec![0; capacity]);
}
