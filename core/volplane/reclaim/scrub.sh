test -d /scrub || { echo 'there is no volume at /scrub'; exit 1; }
while read -r _ where _; do
  case "$where" in /scrub/?*) echo "something is mounted at $where: nothing was erased"; exit 1 ;; esac
done < /proc/self/mounts || exit 1
find /scrub/. ! -name . -prune -exec rm -rf {} + 2>&1 | tail -n 5
left=$(ls -A /scrub) || exit 1
test -z "$left" || { echo 'not erased:'; printf '%s\n' "$left" | head -n 5; exit 1; }
