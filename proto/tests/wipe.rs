//! Tests that wiping file contents also overwrites the vector's spare capacity.

#![allow(unsafe_code)]

/// Returns all bytes of a vector's allocation.
fn memory(bytes: &mut Vec<u8>) -> Vec<u8> {
    let spare = bytes.spare_capacity_mut().iter();
    // SAFETY: the test has initialized the whole capacity.
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
