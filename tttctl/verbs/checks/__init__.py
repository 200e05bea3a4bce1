"""What doctor looks at: each check takes the facts that it judges, so that it can be shown a broken machine."""
