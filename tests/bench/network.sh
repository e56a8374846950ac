#!/usr/bin/env bash
# Two nodes with a slow network between them, on this machine: two network namespaces with host names of their own, joined
# by a veth pair that `tc tbf` shapes. Meshard and PyTorch's FSDP2 over gloo train the bench model over it, in turn.
#
#   tests/bench/network.sh                                       everything, about 40 minutes on two cores
#   tests/bench/network.sh --meshes fsdp --accumulation 1        a part of it
#   tests/bench/network.sh --no-peer --progress thread none      Meshard alone, two ways
#   tests/bench/network.sh --help                                all options
#
# Needs root, and a kernel with namespaces, veth and tbf; where one is missing it says so and ends with 0. What it made is
# gone when it ends, however it ends. Not a test: nothing fails when a target is missed.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

work=$(mktemp -d) child=
nodes=("meshard-$$-0" "meshard-$$-1")

cleanup() {
  local node pid
  [[ -z $child ]] || kill "$child" 2>/dev/null || true
  for node in "${nodes[@]}"; do
    for pid in $(ip netns pids "$node" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null || true; done
    ip netns delete "$node" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

skip() {
  echo "skipped: $1"
  exit 0
}

# The agent that mpirun starts its daemon with, as if it were ssh: enter_node HOST COMMAND...
cat >"$work/enter_node" <<AGENT
#!/usr/bin/env bash
# The namespace has the name of the host; ip gives the command a mount namespace of its own.
node=\$1
shift
export NODE=\$node COMMAND="\$*"
exec ip netns exec "\$node" unshare --uts bash -c \\
  'hostname "\$NODE" && mount --bind "$work/hosts" /etc/hosts && exec bash -c "\$COMMAND"'
AGENT
chmod +x "$work/enter_node"
printf '127.0.0.1 localhost\n10.213.77.1 %s\n10.213.77.2 %s\n' "${nodes[@]}" >"$work/hosts"

for tool in ip tc unshare mpirun; do command -v "$tool" >/dev/null || skip "no $tool here"; done
reason=$(ip netns add "${nodes[0]}" 2>&1 && ip netns add "${nodes[1]}" 2>&1) || skip "no network namespaces: $reason"
reason=$(ip link add link0 netns "${nodes[0]}" type veth peer name link0 netns "${nodes[1]}" 2>&1) ||
  skip "no veth pair: $reason"
for i in 0 1; do
  ip -n "${nodes[i]}" address add "10.213.77.$((i + 1))/24" dev link0
  ip -n "${nodes[i]}" link set lo up
  ip -n "${nodes[i]}" link set link0 up
  reason=$(tc -n "${nodes[i]}" qdisc replace dev link0 root tbf rate 1gbit burst 128kb latency 100ms 2>&1) ||
    skip "no tc tbf: $reason"
  reason=$("$work/enter_node" "${nodes[i]}" true 2>&1) || skip "cannot enter ${nodes[i]}: $reason"
done

python=${PYTHON:-.venv/bin/python}
# In the background, so that a signal ends it at once and not after the run that is under way.
PYTHONPATH=tests/bench "$python" -B tests/bench/network.py --agent "$work/enter_node" --nodes "${nodes[@]}" "$@" &
child=$!
wait "$child"
