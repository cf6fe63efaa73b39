#!/bin/sh
# Makes random tokens for the bookies' HTTP, one for each role, in deploy/secrets, and the access file with their hashes.
# It makes no token again: remove a file to get another one.
set -eu
folder=$(dirname "$0")/secrets
mkdir -p "$folder"
: > "$folder/http-access.new"
for role in metrics read operate destroy; do
  token=$folder/$role.token
  [ -s "$token" ] || (umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$token")
  echo "token $role $role sha256:$(sha256sum < "$token" | cut -d ' ' -f 1)" >> "$folder/http-access.new"
done
# The containers' users read these two: the hashes, and the token that only scrapes.
chmod 644 "$folder/http-access.new" "$folder/metrics.token"
mv "$folder/http-access.new" "$folder/http-access"
