//! Attaches files to loop devices, to use a file as a file system of a fixed size.
//!
//! The kernel detaches a device from its file when the device is neither open nor mounted (autoclear). Therefore, the
//! device is detached regardless of how its users exit.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Maximum number of attempts to claim a free device. Another process may claim the device between lookup and use.
const TRIES_MAX: usize = 32;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// A loop device that stays attached to its file while this value exists or the device is mounted.
#[derive(Debug)]
pub struct LoopDevice {
    _open: File,
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches a free device to a file that is open for reading and writing.
    ///
    /// # Errors
    /// Returns an error if the host has no loop devices, none is free, or the kernel is older than 5.8.
    pub fn from_file(file: BorrowedFd<'_>) -> io::Result<Self> {
        let control = File::options().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..TRIES_MAX {
            // SAFETY: the call takes no argument and returns a number.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = File::options().read(true).write(true).open(&path)?;
            match configure(&device, file) {
                Ok(()) => return Ok(Self { _open: device, path }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "no loop device is free"))
    }

    /// Returns the path of the device node.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn configure(device: &File, file: BorrowedFd<'_>) -> io::Result<()> {
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
    let config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: the kernel reads a structure of this type from a valid reference that outlives the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, std::ptr::from_ref(&config)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernels() {
        assert_eq!((size_of::<LoopInfo>(), size_of::<LoopConfig>()), (232, 304));
    }

    /// Data written to the device is in the file, and the device is free after its last user has closed it.
    #[test]
    #[ignore = "needs root"]
    fn loop_device_maps_file_and_autoclears() {
        if !Path::new("/dev/loop-control").exists() {
            return; // a kernel without loop devices
        }
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let device = LoopDevice::from_file(file.as_fd()).unwrap();
        let mut open = File::options().write(true).open(device.path()).unwrap();
        open.seek(SeekFrom::Start(4096)).unwrap();
        open.write_all(b"through the device").unwrap();
        open.sync_all().unwrap();
        let mut text = [0; 18];
        file.seek(SeekFrom::Start(4096)).unwrap();
        file.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"through the device");
        let size = PathBuf::from("/sys/block").join(device.path().file_name().unwrap()).join("loop/backing_file");
        assert!(size.exists(), "the control");
        drop((open, device));
        while size.exists() {
            std::thread::yield_now(); // the kernel detaches the device a moment after the last close
        }
    }
}
