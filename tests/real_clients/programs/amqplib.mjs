// amqplib against the server at AMQP_URL. Prints the name of each part that held.
import assert from 'node:assert/strict';
import {randomUUID} from 'node:crypto';
import amqp from 'amqplib';

const url = process.env.AMQP_URL;
const fresh = () => `node-${randomUUID()}`;

// The next message of a queue, which will come.
async function arrived(channel, queue, options = {noAck: true}) {
  for (;;) {
    const message = await channel.get(queue, options);
    if (message) return message;
  }
}

// What a refusal says; the channel is gone with it.
async function refusal(connection, act) {
  const channel = await connection.createChannel();
  channel.on('error', () => {});
  const error = await act(channel).then(() => null, (error) => error);
  assert.ok(error, 'it was not refused');
  return error.message;
}

const parts = {
  async messages(connection) {
    const channel = await connection.createChannel();
    const {queue} = await channel.assertQueue(fresh(), {durable: true});
    const headers = {text: 'ü 😀', int: 7, big: 2 ** 40, float: 1.5, yes: true, none: null, list: [1, 'a', {b: 2}],
      when: {'!': 'timestamp', value: 1700000000}};
    const options = {headers, contentType: 'text/plain', contentEncoding: 'utf-8', persistent: true, priority: 2,
      correlationId: 'c', replyTo: 'r', messageId: 'm', timestamp: 1700000000, type: 't', userId: 'guest', appId: 'a',
      expiration: '60000'};
    channel.sendToQueue(queue, Buffer.from('тело'), options);
    const {content, fields, properties} = await arrived(channel, queue);
    assert.equal(content.toString(), 'тело');
    assert.deepEqual([fields.exchange, fields.routingKey, fields.redelivered], ['', queue, false]);
    assert.deepEqual(properties.headers, headers);
    assert.deepEqual(
      [properties.contentType, properties.deliveryMode, properties.priority, properties.correlationId,
        properties.messageId, properties.timestamp, properties.type, properties.userId, properties.expiration],
      ['text/plain', 2, 2, 'c', 'm', 1700000000, 't', 'guest', '60000']);
    for (const size of [0, 1, 131064, 131065, 2000000]) {
      channel.sendToQueue(queue, Buffer.alloc(size, 7));
      assert.deepEqual((await arrived(channel, queue)).content, Buffer.alloc(size, 7));
    }
    assert.equal(await channel.get(queue), false);
  },

  async topology(connection) {
    const channel = await connection.createChannel();
    const {queue} = await channel.assertQueue('', {exclusive: true});
    assert.match(queue, /^amq\.gen-/);
    const [topic, fanout, headers] = [fresh(), fresh(), fresh()];
    await channel.assertExchange(topic, 'topic');
    await channel.assertExchange(fanout, 'fanout', {internal: true});
    await channel.assertExchange(headers, 'headers', {alternateExchange: topic});
    await channel.bindExchange(fanout, topic, 'a.#');
    await channel.bindQueue(queue, fanout, '');
    await channel.bindQueue(queue, headers, '', {'x-match': 'all', h: 1});
    channel.publish(topic, 'a.b', Buffer.from('1'));
    channel.publish(topic, 'b', Buffer.from('-'));
    channel.publish(headers, 'k', Buffer.from('2'), {headers: {h: 1}});
    channel.publish(headers, 'a.alternate', Buffer.from('3'));
    const got = [];
    while (got.length < 3) got.push((await arrived(channel, queue)).content.toString());
    assert.deepEqual(got, ['1', '2', '3']);
    await channel.unbindExchange(fanout, topic, 'a.#');
    await channel.unbindQueue(queue, headers, '', {'x-match': 'all', h: 1});
    channel.publish(headers, 'k', Buffer.from('-'), {headers: {h: 1}});
    channel.sendToQueue(queue, Buffer.from('4'));
    while ((await channel.checkQueue(queue)).messageCount < 1) /* it is on its way */;
    assert.deepEqual(await channel.checkQueue(queue), {queue, messageCount: 1, consumerCount: 0});
    assert.equal((await channel.purgeQueue(queue)).messageCount, 1);
    await channel.deleteExchange(topic);
    assert.equal((await channel.deleteQueue(queue)).messageCount, 0);
  },

  async confirms(connection) {
    const channel = await connection.createConfirmChannel();
    const {queue} = await channel.assertQueue(fresh(), {maxLength: 2, arguments: {'x-overflow': 'reject-publish'}});
    const publish = (body) => new Promise((resolve) =>
      channel.sendToQueue(queue, Buffer.from(body), {}, (error) => resolve(error === null)));
    assert.deepEqual([await publish('1'), await publish('2'), await publish('3')], [true, true, false]);
    await arrived(channel, queue);
    assert.equal(await publish('4'), true);
    const returned = new Promise((resolve) => channel.once('return', resolve));
    channel.publish('', 'nobody', Buffer.from('x'), {mandatory: true});
    await channel.waitForConfirms();
    assert.equal((await returned).fields.replyText, 'NO_ROUTE');
    for (let n = 0; n < 500; n++) channel.publish('', 'nobody', Buffer.from(`${n}`));
    await channel.waitForConfirms();
  },

  async consuming(connection) {
    const channel = await connection.createChannel();
    const {queue} = await channel.assertQueue(fresh(), {autoDelete: true});
    await channel.prefetch(1);
    for (const body of ['1', '2', '3']) channel.sendToQueue(queue, Buffer.from(body));
    const seen = [];
    await new Promise((resolve) => channel.consume(queue, (message) => {
      seen.push([message.content.toString(), message.fields.redelivered]);
      if (seen.length === 1) channel.nack(message, false, true);
      else channel.ack(message);
      if (seen.length === 4) resolve();
    }, {consumerTag: 'mine'}));
    assert.deepEqual(seen, [['1', false], ['1', true], ['2', false], ['3', false]]);
    await channel.cancel('mine');
    assert.match(await refusal(connection, (other) => other.checkQueue(queue)), /404 \(NOT-FOUND\)/);
  },

  async cancelled(connection) {
    const channel = await connection.createChannel();
    const {queue} = await channel.assertQueue(fresh());
    const told = new Promise((resolve) => channel.consume(queue, (message) => message === null && resolve()));
    await channel.checkQueue(queue);
    await channel.deleteQueue(queue);
    await told;
  },

  async deadLetters(connection) {
    const channel = await connection.createChannel();
    const {queue: dead} = await channel.assertQueue(fresh());
    const {queue} = await channel.assertQueue(fresh(), {deadLetterExchange: '', deadLetterRoutingKey: dead, messageTtl: 20});
    channel.sendToQueue(queue, Buffer.from('x'));
    const [{reason, count, 'routing-keys': keys}] = (await arrived(channel, dead)).properties.headers['x-death'];
    assert.deepEqual([reason, count, keys], ['expired', 1, [queue]]);
    const {queue: ranked} = await channel.assertQueue(fresh(), {maxPriority: 9});
    for (const priority of [1, 9, 5]) channel.sendToQueue(ranked, Buffer.from(`${priority}`), {priority});
    while ((await channel.checkQueue(ranked)).messageCount < 3) /* they are on their way */;
    assert.equal((await arrived(channel, ranked)).content.toString(), '9');
  },

  async replies(connection) {
    const [asking, serving] = [await connection.createChannel(), await connection.createChannel()];
    const {queue} = await serving.assertQueue(fresh());
    await serving.consume(queue, ({content, properties}) => serving.sendToQueue(
      properties.replyTo, Buffer.from(`${content}!`), {correlationId: properties.correlationId}), {noAck: true});
    const answer = new Promise((resolve) => asking.consume('amq.rabbitmq.reply-to', resolve, {noAck: true}));
    asking.sendToQueue(queue, Buffer.from('hello'), {replyTo: 'amq.rabbitmq.reply-to', correlationId: '1'});
    const {content, properties} = await answer;
    assert.deepEqual([content.toString(), properties.correlationId], ['hello!', '1']);
  },

  async refusals(connection) {
    const name = fresh();
    await (await connection.createChannel()).assertQueue(name, {durable: false});
    assert.match(await refusal(connection, (ch) => ch.assertQueue(name, {durable: true})), /406.*inequivalent arg 'durable'/);
    assert.match(await refusal(connection, (ch) => ch.checkExchange('nowhere')), /404.*no exchange 'nowhere' in vhost '\/'/);
    await assert.rejects(amqp.connect(url.replace('guest:guest', 'guest:wrong')), /403 \(ACCESS-REFUSED\)/);
    await assert.rejects(amqp.connect(`${url}/nowhere`), /530 \(NOT-ALLOWED\)|vhost nowhere not found|Expected ConnectionOpenOk/);
  },

  async secret(connection) {
    await connection.updateSecret(Buffer.from('another'), 'it was time');
  },

  // amqplib lets `close` overtake what waits in its channels: the server must hear the client out.
  async closing() {
    for (let n = 0; n < 5; n++) {
      const connection = await amqp.connect(url);
      const channel = await connection.createChannel();
      while (channel.publish('', 'nobody', Buffer.from('0.123456789'))) /* until its buffer is full */;
      await connection.close();
    }
  },
};

for (const [name, part] of Object.entries(parts)) {
  const connection = await amqp.connect(url);
  await part(connection);
  await connection.close();
  console.log(name);
}
