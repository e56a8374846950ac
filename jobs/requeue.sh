# shellcheck shell=bash
# Whether a job that stopped is started again: not if somebody wants none, if the next start would do no better, or if
# there were enough of them (MESHARD_MAX_REQUEUES, jobs/site.env). On PBS the next start is a job of its own
# (jobs/pbs/successor.sh). Sourced by batch.sh.

# How this start ended, in its own words: the last line of its metrics.
end_of_run() {
  [[ $(config_written) != "$config_before" ]] || return 0
  tail -n 1 "$run_folder/metrics.jsonl" 2>/dev/null | grep '"end"' || true
}

# Whether somebody wants no further start, whatever else asked for a stop; sets wish. TERM is the word of scancel and
# qdel; a file STOP is the user's own.
wish=''
ended_for_good() {
  local by_the_clock=0
  [[ $requeue != requeue_pbs ]] || by_the_clock=$(terms_of_walltime)
  if ((terms > by_the_clock)); then
    wish=TERM
  elif [[ -e $run_folder/STOP || $(end_of_run) == *' STOP file asked for it'* ]]; then
    wish="the file STOP"
    rm -f "$run_folder/STOP"
  fi
  [[ -n $wish ]]
}

# The batch system asked, and not because the time is nearly over: Slurm does so up to a minute early.
stopped_early() {
  local left
  left=$("$time_left")
  [[ -n $stop && -n $left ]] && ((left > MESHARD_STOP_BEFORE_S + 60))
}

# A stop. Another start follows unless somebody wants none, it would do no better, or there were enough of them.
stopped() {
  local saved progress=''
  saved=$(newest_checkpoint)
  [[ -z $saved || $saved == "$saved_before" ]] || progress=yes
  [[ -n $progress ]] || status=70
  if ended_for_good; then
    say "stopped by $wish: not requeued. To go on, submit it again"
  elif [[ -z $progress ]] && ! stopped_early; then
    complain "stopped before a step was saved: not requeued, as the next start would do no better. Give it more time"
  elif ((restarts >= MESHARD_MAX_REQUEUES)); then
    complain "stopped, but restarted $restarts times already (MESHARD_MAX_REQUEUES, jobs/site.env): not requeued." \
      "To go on, submit it again"
  else
    "$requeue"
  fi
}

requeue_slurm() {
  say "stopped: requeueing job $job, restart $((restarts + 1)) of at most $MESHARD_MAX_REQUEUES"
  scontrol requeue "$job" || { complain "Slurm did not requeue it; to go on, submit it again"; return 0; }
  exit 0
}
