disk=/dev/volplane-scrub
test -e "$disk" || { echo "there is no volume at $disk"; exit 1; }
size=$(blockdev --getsize64 "$disk" 2>/dev/null || stat -Lc %s "$disk") || exit 1
test "$size" -gt 0 || { echo "the volume at $disk has no size"; exit 1; }
blkdiscard -f "$disk" 2>/dev/null || fallocate -p -l "$size" "$disk" 2>/dev/null
cmp -s -n "$size" "$disk" /dev/zero && exit 0
dd if=/dev/zero of="$disk" bs=4M count="$size" iflag=count_bytes,fullblock conv=notrunc,fsync status=none || exit 1
cmp -n "$size" "$disk" /dev/zero || { echo 'not erased'; exit 1; }
