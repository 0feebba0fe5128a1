# Project quotas of ext4 and of XFS enforce the disk limit, and are released.
# seconds: 600
# tests: launch
. "$VM/lib.sh"
[ -x /payload/tests/launch ] || exit 77
name=disk::project_quota_enforces_disk_limit
made=$(mktemp -d)
# The daemon has its own user.
chmod 755 "$made"
remove() {
    for type in ext4 xfs; do
        ! mountpoint -q "$made/$type" || umount "$made/$type"
    done
    rm -r "$made"
}
trap remove EXIT
for type in ext4 xfs; do
    truncate -s 512M "$made/$type.image"
    case $type in
    ext4) mkfs.ext4 -q -O quota,project -E quotatype=prjquota "$made/$type.image" ;;
    xfs) mkfs.xfs -q "$made/$type.image" ;;
    esac
    mkdir "$made/$type"
    mount -o loop,prjquota "$made/$type.image" "$made/$type"
    at "$type is mounted"
    printed=$(EXECUTOR_QUOTA_DIR="$made/$type" sh -eu "$VM/libtest.sh" launch --ignored --exact --nocapture $name 2>&1) ||
        fail "$type: $printed"
    # A run without the test would also pass.
    has "$printed" '^note: ok. 1 passed; 0 failed'
    note "$type: $(printf '%s\n' "$printed" | grep -o 'limited: .*')"
    at "$type has enforced the limit"
done
