"""Extensions that come with the core, and examples of how hooks are wrapped.

They are loaded by entry point, as those of third parties, and use only public names. The configuration enables them:

    extensions:
      - {name: call_log, options: {path: /var/log/volplane-calls.jsonl}}
      - {name: dry_run}
      - {name: quota, options: {ledger: /var/lib/volplane/quota.json, limits: {team-a: 100Gi}, default: 10Gi}}

The first in the list is the outermost: it also sees calls that the others decline.
"""
