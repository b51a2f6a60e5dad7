"""Extensions that come with the core: useful as they are, and examples of how hooks are wrapped.

They use nothing that a third party could not. The configuration file turns them on:

    extensions:
      - {name: call_log, options: {path: /var/log/volplane-calls.jsonl}}
      - {name: dry_run}
      - {name: quota, options: {ledger: /var/lib/volplane/quota.json, limits: {team-a: 100Gi}, default: 10Gi}}

The first in the list is the outermost: it sees what the others decline.
"""
