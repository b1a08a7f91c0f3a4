"""Who of the ranks keeps the others waiting: what each says of its steps, what the kernel adds, and the verdict."""
