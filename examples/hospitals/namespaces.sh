#!/bin/sh
# The server and three hospitals in network namespaces of their own, as root: separate addresses, and cables to cut.
#   sh namespaces.sh up      then, in each:  ip netns exec hospital-bern upcycled federation join ...
#   sh namespaces.sh cut oslo; sh namespaces.sh mend oslo; sh namespaces.sh down
# The server is 10.77.9.9 (ip netns exec hospital-server ...): init with --host 10.77.9.9 --listen 10.77.9.9.
set -eu
sites="bern lyon oslo"
number() { i=0; for each in $sites; do i=$((i + 1)); if [ "$each" = "$1" ]; then echo $i; fi; done; }
case "$1" in
up)
  ip netns add hospital-server
  ip -n hospital-server link set lo up
  ip -n hospital-server addr add 10.77.9.9/32 dev lo
  for s in $sites; do
    n=$(number "$s")
    ip netns add "hospital-$s"
    ip -n "hospital-$s" link set lo up
    ip link add "cable$n" netns hospital-server type veth peer name cable netns "hospital-$s"
    ip -n hospital-server addr add "10.77.$n.1/24" dev "cable$n"
    ip -n hospital-server link set "cable$n" up
    ip -n "hospital-$s" addr add "10.77.$n.2/24" dev cable
    ip -n "hospital-$s" link set cable up
    ip -n "hospital-$s" route add 10.77.9.9 via "10.77.$n.1"
  done ;;
cut) ip -n hospital-server link set "cable$(number "$2")" down ;;
mend) ip -n hospital-server link set "cable$(number "$2")" up ;;
slow) ip netns exec hospital-server tc qdisc add dev "cable$(number "$2")" root netem delay 100ms loss 1% ;;
down) for s in server $sites; do ip netns del "hospital-$s"; done ;;
esac
