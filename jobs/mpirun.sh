# shellcheck shell=bash
# How mpirun starts the ranks of a job: on which hosts, how many on each, on which cores. Sourced by batch.sh.

alone=''                  # whether the job asked for nodes for itself
own_cpus='' node_cpus=''  # a line for each node: CPUs of the job, CPUs that there are, as the batch system counts them
binding='' unbound=''     # what becomes of the ranks, in words

# set_mpirun [OPTION...]: sets launcher, binding and unbound.
set_mpirun() {
  launcher=(mpirun -n "$ranks" "$@" --report-bindings)
  if [[ " $MESHARD_MPI_OPTIONS" == *" --map-by"* || " $MESHARD_MPI_OPTIONS" == *" --bind-to"* ]]; then
    binding="as MESHARD_MPI_OPTIONS has it"
  elif own_cores; then
    binding="each rank to cores of its own, as $whose"
    launcher+=(--map-by "slot:PE=$threads" --bind-to core)
  else
    binding="none of ours, as $whose"
    unbound=yes
    # There, what waits for another gives its core away: threads that spin for one another take three times as long as
    # threads that sleep. On cores of their own they spin, which makes small models up to three times faster.
    export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
    launcher+=(--map-by slot --bind-to none --mca mpi_yield_when_idle 1 -x OMP_WAIT_POLICY)
  fi
  # shellcheck disable=SC2206  # several options in one setting
  launcher+=($MESHARD_MPI_OPTIONS)
}

# Whether it is known which cores no other job uses, and mpirun has enough of them; sets whose, the reason.
own_cores() {
  local least most usable siblings=1 wanted=$(((ranks + nodes - 1) / nodes * threads))
  least=$(sort -n <<<"$own_cpus" | head -n 1) most=$(sort -n <<<"$node_cpus" | tail -n 1)
  usable=$(usable_cpus)
  [[ " $MESHARD_MPI_OPTIONS " == *" --use-hwthread-cpus "* ]] || siblings=$(threads_of_a_core)
  if ((wanted > usable / siblings)); then
    whose="its ranks want $wanted cores of a node, and $((usable / siblings)) are there"
    return 1
  elif [[ -n $alone ]]; then
    whose="the job has its nodes for itself"
  elif [[ $least =~ ^[0-9]+$ && $most =~ ^[0-9]+$ ]] && ((least >= most)); then
    whose="the job has all $most CPUs of its nodes"
  # An allocation may be counted in cores.
  elif [[ $least =~ ^[0-9]+$ ]] && ((usable < $(nproc --all) && usable <= least * $(threads_of_a_core))); then
    whose="the batch system gives it $usable CPUs of a node, and no others"
  else
    # mpirun would count the node's cores from 0 in every job, and they would all meet on the first ones.
    whose="other jobs may be on these nodes (place=excl or --exclusive keeps them away)"
    return 1
  fi
}

# CPUs that a process of this job could run on here. A cpuset limits them; an affinity mask does not, which mpirun does
# not heed either.
usable_cpus() {
  env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT taskset -c "0-$(($(nproc --all) - 1))" nproc 2>/dev/null || nproc --all
}

threads_of_a_core() { lscpu | awk -F: '/^Thread\(s\) per core/ {n = $2 + 0} END {print (n > 0 ? n : 1)}'; }

slurm_cpus() {
  [[ $(scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null) != *" OverSubscribe=NO "* ]] || alone=yes
  own_cpus=$(sed 's/([^)]*)//g; s/,/\n/g' <<<"${SLURM_JOB_CPUS_PER_NODE-}")   # 16(x2),8
  node_cpus=$(sinfo -h -N -n "$hosts" -o %c 2>/dev/null || true)
}

# exec_host is HOST/INDEX*CPUS+HOST/INDEX+..., *1 left out. A host may have several vnodes.
pbs_cpus() {
  [[ $(job_fact Resource_List.place) != *excl* ]] || alone=yes
  own_cpus=$(job_fact exec_host | tr + '\n' |
    awk -F '[/*]' 'NF {cpus[$1] += $3 ? $3 : 1} END {for (host in cpus) print cpus[host]}')
  # shellcheck disable=SC2086  # names of hosts
  node_cpus=$(pbsnodes -H $hosts 2>/dev/null | awk '
    $1 == "resources_available.host" {host = $3}
    $1 == "resources_available.ncpus" {cpus[host] += $3}   # the host stands before
    END {for (host in cpus) print cpus[host]}' || true)
}

# An Open MPI that was built without PBS starts its daemons of other nodes through ssh or the like. The word to end, which
# PBS sends to all processes of the job's session, would end that, and the run with it; in another session it does not
# hear it. The guard of launch.sh knows it there.
shield_agent() {
  ((nodes > 1)) || return 0
  local i agent agents=()
  for i in "${!launcher[@]}"; do
    if [[ ${launcher[i]} == plm_rsh_agent ]]; then
      launcher[i + 1]="setsid ${launcher[i + 1]}"
      return 0
    fi
  done
  agents=$(ompi_info --parsable --param plm rsh --level 9 2>/dev/null |
    sed -n 's/^mca:plm:rsh:param:plm_rsh_agent:value://p')
  IFS=: read -ra agents <<<"${agents//\"/}"
  for agent in "${agents[@]}"; do   # mpirun takes the first that is there
    read -r agent <<<"$agent"
    if command -v "${agent%% *}" >/dev/null; then export OMPI_MCA_plm_rsh_agent="setsid $agent"; return 0; fi
  done
}

# write_hostfile: from the node file, which has a line for each rank. A host without slots= may take as many ranks as it
# has cores, however many lines it has.
write_hostfile() {
  hostfile=$(mktemp) || refuse "no temporary file can be made in ${TMPDIR:-/tmp}"
  trap 'rm -f "$hostfile"' EXIT
  awk '!slots[$1]++ {host[++hosts] = $1} END {for (i = 1; i <= hosts; i++) print host[i] " slots=" slots[host[i]]}' \
    "$PBS_NODEFILE" >"$hostfile"
}
