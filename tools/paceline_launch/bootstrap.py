"""The shell script that looks after one process of the job, on this machine or on another.

It travels over standard input of `/bin/sh -s`, so nothing of it shows on a command line, and the other host needs
no Python. Standard input then stays open as the control connection:

    term             SIGTERM to the process and its children
    kill             SIGKILL to them
    (an empty line)  the launcher is alive
    end of file      like `term`, and after the grace like `kill`

So nothing survives a launcher that was killed and, with a limit on silence, nothing survives a network that is gone.
On standard error the script reports `MARK started` and `MARK ended STATUS`, with a further word `memory` where the
kernel killed a process of the job's control group meanwhile because its memory was exhausted.
"""

import os
import re
import shlex

# All of it is one compound command: a shell that reads ahead has taken the whole script, and nothing of what follows
# on standard input, before the first line runs. The job's process leads a session of its own, hence a process group
# that is ended as one; what its leader leaves behind has two seconds to follow it. Children that left the group are
# found by the tag in their environment. The tag also tells which members of a group are alive, where nobody reaps the
# dead (the init of many containers does not).
_SCRIPT = r"""{
paceline_mark=@MARK@ paceline_tag=@TAG@ paceline_grace=@GRACE@ paceline_silence=@SILENCE@ paceline_sharers=@SHARERS@
exec 3<&0 </dev/null 4>&2 2>/dev/null
signal_job() {
  kill -s "$1" -- "-$job" || { [ -z "$paceline_reaped" ] && kill -s "$1" "$job"; }
}
tagged() {
  grep -lsF "PACELINE_PROCESS_ID=$paceline_tag" /proc/[0-9]*/environ |
    while IFS=/ read -r _ _ pid _; do echo "$pid"; done
}
kill_job() {
  signal_job KILL
  for pid in $(tagged); do kill -s KILL "$pid"; done
}
alive() {
  [ -n "$(tagged)" ] || { [ -z "$paceline_reaped" ] && kill -s 0 "$job"; }
}
end_job() {
  signal_job TERM
  if [ -n "$paceline_reaped" ]; then
    rest=$(tagged)
    [ -n "$rest" ] || { signal_job KILL; return; }
    for pid in $rest; do kill -s TERM "$pid"; done
  fi
  left=$(($1 * 5))
  while [ "$left" -gt 0 ] && alive; do
    sleep 0.2
    left=$((left - 1))
  done
  kill_job
}
memory_kills() {
  own=$(sed -n 's/^0:://p' /proc/self/cgroup) own_v1=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
  cat "/sys/fs/cgroup$own/memory.events" "/sys/fs/cgroup/memory$own_v1/memory.oom_control" \
    /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control | sed -n 's/^oom_kill //p'
}
paceline_memory_kills=$(memory_kills)
paceline_reaped=
paceline_setsid=$(command -v setsid)
paceline_cores=$(OMP_NUM_THREADS='' nproc || getconf _NPROCESSORS_ONLN || echo 1)
echo @KEY@ | (
  exec 5<&0 </dev/null 2>&4 3<&- 4>&-
  unset DMLC_RANK PORT PACELINE_PORT_FILE PACELINE_ENDED_FILE PACELINE_LOST_FILE
  unset PACELINE_KEY_FD PACELINE_KEY_FILE PACELINE_INSECURE
@EXPORTS@
  [ -z "${PACELINE_KEY_FD-}" ] && exec 5<&-
  export PACELINE_PROCESS_ID="$paceline_tag" OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"
  if [ -z "${PACELINE_NUM_THREADS-}" ]; then
    PACELINE_NUM_THREADS=$((paceline_cores > paceline_sharers ? paceline_cores / paceline_sharers : 1))
    export PACELINE_NUM_THREADS
  fi
  paceline_folder=@FOLDER@
  cd "$paceline_folder" 2>/dev/null || { echo "the folder $paceline_folder does not exist on this host" >&2; exit 126; }
  set -- @COMMAND@
  for paceline_program in "${paceline_setsid:-setsid}" "$1"; do
    command -v "$paceline_program" >/dev/null ||
      { echo "the program $paceline_program does not exist on this host" >&2; exit 127; }
  done
  echo "$paceline_mark started" >&2
  exec "$paceline_setsid" "$@"
) &
job=$!
watchdog=
if [ "$paceline_silence" -gt 0 ]; then
  (
    left=5
    trap 'left=6' USR1
    trap 'kill "$nap"; exit' TERM
    while [ "$left" -gt 0 ]; do
      sleep $(((paceline_silence + 4) / 5)) &
      nap=$!
      wait "$nap"
      kill "$nap"
      left=$((left - 1))
    done
    end_job "$paceline_grace"
  ) >/dev/null 4>&- &
  watchdog=$!
fi
(
  while read -r word; do
    case $word in
      term) signal_job TERM ;;
      kill) kill_job ;;
    esac
    [ -z "$watchdog" ] || kill -s USR1 "$watchdog"
  done
  end_job "$paceline_grace"
  [ -z "$watchdog" ] || kill "$watchdog"
) <&3 >/dev/null 4>&- &
reader=$!
exec 3<&-
wait "$job"
status=$?
paceline_reaped=1
case $status in
  143) end_job "$paceline_grace" ;; # SIGTERM: its children were told to end, too
  *) end_job 2 ;;
esac
[ "$status" != 137 ] || [ "$(memory_kills)" = "$paceline_memory_kills" ] || paceline_why=memory
echo "$paceline_mark ended $status ${paceline_why-}" >&4
kill -s KILL "$reader"
[ -z "$watchdog" ] || kill "$watchdog"
exit "$status"
}
"""


def script(*, mark, tag, command, folder, environment, sharers, grace, silence=0, key=""):
    """Returns the bytes to send to `/bin/sh -s`.

    command      list of words, run as they are, without a shell in between
    environment  dict; values may hold anything but NUL
    sharers      how many such processes share the cores of the host
    grace        whole seconds between TERM and KILL
    silence      whole seconds without a word from the launcher after which the process is ended; 0: no limit
    key          the job's key, which the process finds in the pipe PACELINE_KEY_FD; empty: it gets none
    """
    if key:
        environment = {**environment, "PACELINE_KEY_FD": "5"}
    parts = {
        "MARK": mark,
        "TAG": tag,
        "GRACE": str(grace),
        "SILENCE": str(silence),
        "SHARERS": str(sharers),
        "KEY": shlex.quote(key),
        "EXPORTS": "\n".join(f"  export {name}={shlex.quote(value)}" for name, value in environment.items()),
        "FOLDER": shlex.quote(folder),
        "COMMAND": " ".join(shlex.quote(word) for word in command),
    }
    return os.fsencode(re.sub("@([A-Z]+)@", lambda match: parts[match.group(1)], _SCRIPT))
