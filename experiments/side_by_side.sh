#!/usr/bin/env bash
# Runs the commands of a list side by side: on one GPU, where sampling mostly waits for launches and several processes share it well.
#
#   JOBS=6 BUDGET=540 bash experiments/side_by_side.sh experiments/inline.list
#   ONLY="guess-rl guess-seeded" bash experiments/side_by_side.sh experiments/inline.list        # these and what they come after
#
# A line of the list is `NAME: command` or `NAME after OTHER OTHER: command`; lines that begin with `export` hold for all, those that begin with #
# say something. Commands begin in the order of the list, each when fewer than JOBS run and what it comes after has succeeded. logs/LIST/NAME.log
# holds what it said, logs/LIST/NAME.done that it succeeded: the same line again runs only what isn't done. After BUDGET seconds (0: no end) what
# runs is stopped as by Ctrl-C, and killed GRACE seconds later. Then the results are packed without weights: outputs/LIST.tar.gz.
set -uo pipefail
list=$(realpath "${1:?usage: bash experiments/side_by_side.sh LIST}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
JOBS=${JOBS:-6} BUDGET=${BUDGET:-0} GRACE=${GRACE:-15}
export PYTHON=${PYTHON:-.venv/bin/python} OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} # threads of each process, which are many
name=$(basename "${list%.*}") logs=logs/$(basename "${list%.*}")
mkdir -p "$logs" outputs
rm -f "$logs"/*.rc
declare -A command=() after=() pid=() state=() begun=()
names=()

while IFS= read -r line || [ -n "$line" ]; do
    case $line in
        "" | "#"*) continue ;;
        "export "*) eval "$line"; continue ;;
    esac
    if ! [[ $line =~ ^([A-Za-z0-9_.-]+)(\ after\ ([^:]+))?:\ (.+)$ ]]; then echo "$list: not 'NAME: command': $line" >&2; exit 2; fi
    job=${BASH_REMATCH[1]} command[$job]=${BASH_REMATCH[4]} after[$job]=${BASH_REMATCH[3]}
    for other in ${after[$job]}; do [ -n "${command[$other]:-}" ] || { echo "$list: $job comes after $other, which isn't above it" >&2; exit 2; }; done
    names+=("$job") state[$job]=waiting
    [ ! -e "$logs/$job.done" ] || state[$job]=done
done < "$list"
if [ -n "${ONLY:-}" ]; then
    for job in $ONLY; do [ -n "${command[$job]:-}" ] || { echo "$list: ONLY names $job, which isn't there" >&2; exit 2; }; done
    wanted=" $ONLY " picked=()
    for ((i = ${#names[@]} - 1; i >= 0; i--)); do # from below: what a job comes after stands above it
        [[ $wanted != *" ${names[i]} "* ]] || wanted+=" ${after[${names[i]}]} " picked=("${names[i]}" "${picked[@]}")
    done
    names=("${picked[@]}")
fi

say() { echo "[$SECONDS s] $*"; }

begin() { # job
    say "begin $1"
    begun[$1]=$SECONDS
    # A group of its own, so that all of it can be stopped; a finished command leaves its exit status, whatever became of us
    setsid bash -c 'bash -c "$1" >> "$2.log" 2>&1; echo $? > "$2.rc"' - "${command[$1]}" "$logs/$1" < /dev/null &
    pid[$1]=$! state[$1]=running
}

look() { # what has ended since
    local job code
    for job in "${names[@]}"; do
        [ "${state[$job]}" = running ] || continue
        if [ -e "$logs/$job.rc" ]; then
            code=$(cat "$logs/$job.rc") state[$job]=failed
            [ "$code" != 0 ] || { state[$job]=done; touch "$logs/$job.done"; }
            say "${state[$job]} $job after $((SECONDS - begun[$job])) s$([ "$code" = 0 ] || echo ", exit $code: $(tail -n 1 "$logs/$job.log")")"
        elif ! kill -0 "${pid[$job]}" 2> /dev/null && [ ! -e "$logs/$job.rc" ]; then
            state[$job]=failed; say "killed $job"
        fi
    done
}

count() { # state: how many jobs
    local job n=0
    for job in "${names[@]}"; do [ "${state[$job]}" != "$1" ] || n=$((n + 1)); done
    echo $n
}

while :; do
    look
    [ "$BUDGET" = 0 ] || [ $SECONDS -lt "$BUDGET" ] || break
    for job in "${names[@]}"; do
        [ "${state[$job]}" = waiting ] || continue
        ready=yes
        for other in ${after[$job]}; do
            case ${state[$other]} in done) ;; failed | left) ready=never ;; *) [ $ready = never ] || ready=no ;; esac
        done
        if [ $ready = never ]; then state[$job]=left; say "left $job: what it comes after did not succeed"; fi
        if [ $ready = yes ] && [ "$(count running)" -lt "$JOBS" ]; then begin "$job"; fi
    done
    [ $(($(count running) + $(count waiting))) -gt 0 ] || break
    sleep 1
done

if [ "$(count running)" -gt 0 ]; then
    say "the time is over: stopping $(count running)"
    for signal in INT KILL; do
        for job in "${names[@]}"; do [ "${state[$job]}" != running ] || kill -$signal -- "-${pid[$job]}" 2> /dev/null; done
        end=$((SECONDS + GRACE))
        while look; [ $signal = INT ] && [ "$(count running)" -gt 0 ] && [ $SECONDS -lt $end ]; do sleep 1; done
    done
    sleep 1; look
fi
say "done $(count done), failed $(count failed), not begun $(($(count waiting) + $(count left)))"
"$PYTHON" experiments/pack.py "outputs/$name.tar.gz" "$logs" runs outputs
[ "$(count done)" = ${#names[@]} ]
