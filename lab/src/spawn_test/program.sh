# Starts processes one after the other: CHILDREN, or as many as SECONDS allow.
children=0
bad=0
end=$(($(date +%s) + $2))
echo begun
while [ "$children" -lt "$1" ]; do
    /bin/true || { bad=$((bad + 1)); echo "a child has ended with $?" >&2; }
    children=$((children + 1))
    if [ $((children % 100)) = 0 ] && [ "$(date +%s)" -ge "$end" ]; then
        break
    fi
done
echo "ended $children $bad"
