#!/bin/sh
# Run a command that may take minutes: its output goes to a file, and every few seconds a line shows that it is alive.
#
#   tools/progress.sh SECONDS LOG COMMAND...
#
# Exits as the command does; where it fails, the end of its output is shown.
every=$1 log=$2
shift 2
"$@" >"$log" 2>&1 &
pid=$!
trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
elapsed=0
while kill -0 "$pid" 2>/dev/null; do
  sleep 1
  elapsed=$((elapsed + 1))
  if [ $((elapsed % every)) -eq 0 ] && kill -0 "$pid" 2>/dev/null; then
    printf '  %3d s  %s\n' "$elapsed" "$(grep -v '^ *WARNING' "$log" | tail -n 1 | tr -d '\r' | cut -c1-80)"
  fi
done
wait "$pid" && exit 0
code=$?
echo "failed after $elapsed s; the end of $log:" >&2
tail -n 15 "$log" >&2
exit "$code"
